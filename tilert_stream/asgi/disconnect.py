"""A client that leaves: told by the server in, the cancelled request out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from anyio import CancelScope, create_task_group

from ..errors import Cancelled, TilertStreamError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope

__all__ = ("DisconnectListener", "unless_left", "while_there")

T = TypeVar("T")

ON_DISCONNECT: Final = "tilert_stream.on_disconnect"
"""Our own server's extension; the others tell a disconnect to whoever waits in ``receive``."""


class DisconnectListener:
    """Cancels ``request`` when the client has gone."""

    __slots__ = ("_request", "over")

    def __init__(self, request: CancelScope) -> None:
        self._request = request
        self.over = False
        """The last message is about to be sent: some servers report a disconnect as soon as it is,
        and would have us cancel the very task that closes the connection."""

    async def listen(self, receive: Receive) -> None:
        """Wait for the disconnect."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left()

    def left(self) -> None:
        """The client has gone. Sync."""
        if not self.over:
            self._request.cancel()


async def while_there(
    scope: Scope, receive: Receive, work: Callable[[DisconnectListener], Awaitable[None]]
) -> None:
    """Do ``work``, whose request has been received; it is cancelled when the client leaves.

    :raises ~tilert_stream.errors.TilertStreamError: what ``work`` raises.
    """
    failure: TilertStreamError | None = None
    with CancelScope() as request:
        listener = DisconnectListener(request)
        on_disconnect = scope.get("extensions", {}).get(ON_DISCONNECT)
        if on_disconnect is not None and on_disconnect(listener.left):
            await work(listener)
            return
        async with create_task_group() as tasks:
            tasks.start_soon(listener.listen, receive)
            try:
                await work(listener)
            except TilertStreamError as error:
                # Raised below, outside the task group, which would wrap it into a group.
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def unless_left(scope: Scope, receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """What ``work`` gives, while the client is there.

    :raises ~tilert_stream.errors.Cancelled: the client left before; ``work`` was cancelled.
    :raises ~tilert_stream.errors.TilertStreamError: what ``work`` raises.
    """
    results: list[T] = []

    async def keep_result(_listener: DisconnectListener) -> None:
        results.append(await work())

    await while_there(scope, receive, keep_result)
    if not results:
        raise Cancelled("the client left before it was answered")
    return results[0]
