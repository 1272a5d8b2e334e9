"""A request that has left, and whose answer nobody awaits yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .connection import ClientConnection
    from .request import Request

__all__ = ("Begun",)


class Begun:
    """A request that is on its way, on a connection that nobody else has: ``open`` it, or close.

    :param body: the request's.
    :param left: called when it is closed.
    """

    __slots__ = ("_connection", "_left", "_request", "body")

    def __init__(
        self,
        connection: ClientConnection,
        request: Request,
        body: bytes,
        left: Callable[[], object],
    ) -> None:
        self.body = body
        self._connection: ClientConnection | None = connection
        self._request = request
        self._left = left

    def take(self) -> tuple[ClientConnection, Request]:
        """Hand it on: it is not this one's any more.

        :raises RuntimeError: it has been taken, or closed.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            raise RuntimeError("this request has been taken, or closed")
        return connection, self._request

    def close(self) -> None:
        """Give it up: the server sees its connection end. Sync, idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            self._left()
