"""One task asleep in the event loop, and any thread that may wake it.

The smallest wake that asyncio and trio have: a future, or a rescheduled task. ``anyio.Event`` is
the portable alternative and costs about 4 µs more a wake; this is paid once a chain of every
stream, so it is the one place that talks to both event loops itself.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Protocol, cast

from anyio.lowlevel import current_token

if TYPE_CHECKING:
    import trio

__all__ = ("Parking", "make_parking")


class Parking(Protocol):
    """A parking place for one task."""

    async def park(self) -> None:
        """Sleep until ``unpark``. May wake without cause: check the condition again."""
        ...

    def unpark(self) -> bool:
        """Wake the parked task, from any thread; nothing happens if none is parked.

        Returns False if the event loop has ended: nobody will ever wake.
        """
        ...


class _AsyncioParking:
    __slots__ = ("_future", "_loop", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._future: asyncio.Future[None] | None = None

    async def park(self) -> None:
        self._future = self._loop.create_future()
        try:
            await self._future
        finally:
            self._future = None

    def unpark(self) -> bool:
        # A thread's number is used again after its end: a loop that has ended has no thread.
        if threading.get_ident() == self._thread and not self._loop.is_closed():
            self._wake()
            return True
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # asyncio's word for a closed loop
            return False
        return True

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class _TrioParking:
    __slots__ = ("_task", "_thread", "_token")

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._thread = threading.get_ident()
        self._task: trio.lowlevel.Task | None = None

    async def park(self) -> None:
        import trio

        self._task = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def unpark(self) -> bool:
        import trio

        if threading.get_ident() == self._thread:
            self._wake()
            return True
        try:
            self._token.run_sync_soon(self._wake, idempotent=True)
        except trio.RunFinishedError:
            return False
        return True

    def _wake(self) -> None:
        import trio

        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)


def make_parking() -> Parking:
    """A parking place in the running event loop.

    :raises ~anyio.NoEventLoopError: called outside of one.
    """
    token = current_token().native_token
    if isinstance(token, asyncio.AbstractEventLoop):
        return _AsyncioParking(token)
    return _TrioParking(cast("trio.lowlevel.TrioToken", token))
