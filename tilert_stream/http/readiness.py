"""Who is called when a socket can be read, for as long as that is wanted.

``anyio.wait_readable`` registers a socket with the event loop for one event and one task, and takes
it out again: on asyncio that is half of the cost of hearing of a token, and a task is stepped for
each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .socket_set import socket_set

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ("Readiness",)


class Readiness:
    """Calls whenever a socket can be read, as long as it is on; in the running event loop.

    It tells of an end, and of an error, for as long as nobody has read it.

    :param callback: it must not raise, and reads, or stops this: else it is called again at once.
    :raises ~anyio.NoEventLoopError: made outside of an event loop.
    """

    __slots__ = ("_callback", "_fd", "_set")

    def __init__(self, sock: socket.socket, callback: Callable[[], object]) -> None:
        # Not the socket: it may be closed by the time at which this stops.
        self._fd = sock.fileno()
        self._callback = callback
        self._set = socket_set()

    def start(self) -> None:
        """Call from now on. Sync, idempotent."""
        self._set.add(self._fd, self._callback)

    def let_others_pass(self) -> None:
        """Call whoever else can read now: what is done for this one takes long. Sync."""
        self._set.let_pass()

    def stop(self) -> None:
        """Call no more; before the socket is closed, at the latest. Sync, idempotent."""
        self._set.discard(self._fd, self._callback)
