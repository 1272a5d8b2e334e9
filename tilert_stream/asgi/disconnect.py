"""A client that leaves: told by the server in, the cancelled request out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from anyio import create_task_group

from ..errors import Cancelled, TilertStreamError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup
    from starlette.types import Receive, Scope

__all__ = ("DisconnectListener", "unless_left")

T = TypeVar("T")

ON_DISCONNECT: Final = "tilert_stream.on_disconnect"
"""Our own server's extension; the others tell a disconnect to whoever waits in ``receive``."""


class DisconnectListener:
    """Cancels a task group when the client has gone. The request's body has been received."""

    __slots__ = ("_request", "over")

    def __init__(self, tasks: TaskGroup, scope: Scope, receive: Receive) -> None:
        self._request = tasks.cancel_scope
        self.over = False
        """The last message is about to be sent: some servers report a disconnect as soon as it is,
        and would have us cancel the very task that closes the connection."""
        on_disconnect = scope.get("extensions", {}).get(ON_DISCONNECT)
        if on_disconnect is None or not on_disconnect(self._left):
            tasks.start_soon(self._listen, receive)

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        if not self.over:
            self._request.cancel()


async def unless_left(scope: Scope, receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """What ``work`` gives, while the client is there.

    :raises ~tilert_stream.errors.Cancelled: the client left before; ``work`` was cancelled.
    """
    results: list[T] = []
    failure: TilertStreamError | None = None
    async with create_task_group() as tasks:
        listener = DisconnectListener(tasks, scope, receive)
        try:
            results.append(await work())
        except TilertStreamError as error:
            # Raised below, outside the task group, which would wrap it into a group.
            failure = error
        listener.over = True
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not results:
        raise Cancelled("the client left before it was answered")
    return results[0]
