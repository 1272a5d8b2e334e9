"""The client: requests in, answers out, over connections that are kept for the next request.

::

    with HTTPClient() as client:
        async with client.request(origin, "POST", "/pd/decode", headers, body) as response:
            async for piece in response.chunks():
                ...

Leaving the block before the body's end closes the connection, which is how the server learns that
nobody reads any more. One client serves the whole process.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from .begun import Begun
from .connection import ClientConnection
from .dialer import dial
from .errors import UpstreamClosed
from .request import IDEMPOTENT, make_request
from .response import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from .origin import Origin

__all__ = ("ClientStatistics", "HTTPClient")


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """A client's connections: now, and since it was made."""

    idle: int
    in_use: int
    """Connecting, or carrying a request."""
    opened_total: int
    reused_total: int
    """Requests sent on a connection that had carried another."""
    retried_total: int
    """Sent once more, since the kept connection had been closed by the server."""


class HTTPClient:
    """A pool of connections. Belongs to one event loop.

    :param connect_timeout: seconds to connect, TLS included.
    :param head_timeout: seconds from the sent request to the head of its answer.
    :param write_stall_timeout: seconds that sending may wait without one byte being taken.
    :param idle_timeout: seconds that an unused connection is kept; shorter than the server's.
    :param max_idle: how many unused connections are kept for an origin.
    :param max_header_bytes: of an answer's head.
    :param context: for ``https``; by default the system's authorities are trusted. Making that
        costs some 50 ms, once, at the first ``https`` request.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 5,
        head_timeout: float | None = 600,
        write_stall_timeout: float | None = 30,
        idle_timeout: float = 60,
        max_idle: int = 256,
        max_header_bytes: int = 64 * 1024,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._connect_timeout = connect_timeout
        self._head_timeout = head_timeout
        self._write_stall_timeout = write_stall_timeout
        self._idle_timeout = idle_timeout
        self._max_idle = max_idle
        self._max_header_bytes = max_header_bytes
        self._context = context
        self._idle: dict[Origin, list[ClientConnection]] = {}
        self._closed = False
        self._in_use = 0
        self._opened_total = 0
        self._reused_total = 0
        self._retried_total = 0

    def __enter__(self) -> HTTPClient:
        self._closed = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what is idle now, and each other connection when its answer is closed."""
        self._closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def statistics(self) -> ClientStatistics:
        """Count now."""
        return ClientStatistics(
            idle=sum(map(len, self._idle.values())),
            in_use=self._in_use,
            opened_total=self._opened_total,
            reused_total=self._reused_total,
            retried_total=self._retried_total,
        )

    def request(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        *,
        connect_timeout: float | None = None,
        head_timeout: float | None = None,
        repeatable: bool | None = None,
        begun: Begun | None = None,
    ) -> AbstractAsyncContextManager[Response]:
        """``open`` for a block; leaving it before the body's end closes the connection."""
        return _Block(
            partial(
                self.open,
                origin,
                method,
                target,
                headers,
                body,
                connect_timeout=connect_timeout,
                head_timeout=head_timeout,
                repeatable=repeatable,
                begun=begun,
            )
        )

    async def open(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        *,
        connect_timeout: float | None = None,
        head_timeout: float | None = None,
        repeatable: bool | None = None,
        begun: Begun | None = None,
    ) -> Response:
        """Send a request and wait for the head of its answer; close what is returned.

        A kept connection that the server has closed in the same moment is replaced once, unseen:
        if the request may be repeated, or if the server has certainly seen no byte of it.

        :param target: path and query, after the origin's prefix.
        :param headers: besides ``Host`` and ``Content-Length``.
        :param connect_timeout: seconds, in place of the client's own.
        :param head_timeout: seconds, in place of the client's own.
        :param repeatable: whether sending it twice does no harm; None: as its method says.
        :param begun: what ``begin`` has made of the same request.
        :raises ConnectFailed: no connection.
        :raises UpstreamTimeout: no answer in time.
        :raises UpstreamClosed: the connection ended before the answer.
        :raises UpstreamInvalid: the answer is no HTTP/1.1, or its head is too large.
        """
        if head_timeout is None:
            head_timeout = self._head_timeout
        connection: ClientConnection | None
        if begun is not None:
            connection, request = begun.take()
        else:
            request = make_request(origin, method, target, headers, body)
            connection = self._use_idle(origin)
            if connection is None:
                self._in_use += 1
        try:
            if connection is not None:
                try:
                    head = await connection.exchange(request, head_timeout)
                    return Response(head, connection, origin, self._give_back)
                except UpstreamClosed:
                    again = method in IDEMPOTENT if repeatable is None else repeatable
                    if connection.answered or not (again or connection.untouched):
                        raise
                    self._retried_total += 1
            connection = await self._connect(origin, connect_timeout)
            head = await connection.exchange(request, head_timeout)
            return Response(head, connection, origin, self._give_back)
        except BaseException:
            self._in_use -= 1
            raise

    def begin(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Begun | None:
        """Send a request now, to be continued with ``open``; None: no connection is kept. Sync.

        Nothing is known then of how it fares: a connection that the server has closed shows later.
        """
        request = make_request(origin, method, target, headers, body)
        connection = self._use_idle(origin)
        if connection is None:
            return None
        connection.begin(request)
        return Begun(connection, request, body, self._left)

    def _use_idle(self, origin: Origin) -> ClientConnection | None:
        connection = self._take_idle(origin)
        if connection is not None:
            self._in_use += 1
            self._reused_total += 1
        return connection

    def _left(self) -> None:
        self._in_use -= 1

    def _give_back(self, origin: Origin, connection: ClientConnection, reusable: bool) -> None:  # noqa: FBT001 - a callback of three facts
        self._in_use -= 1
        connection.idle_since = monotonic()
        self._keep(origin, connection, reusable=reusable)

    def has_idle(self, origin: Origin) -> bool:
        """Whether a connection is kept for ``origin`` now; it may have ended."""
        return bool(self._idle.get(origin))

    async def wait_closed(self, origin: Origin) -> None:
        """Wait until the server ends a connection that is idle now; for ever if none is.

        The death of a process shows here at once. So does the server's own idle time-out. The
        connection counts neither as idle nor as in use meanwhile.
        """
        connection = self._take_idle(origin)
        if connection is None:
            await anyio.sleep_forever()
            return
        try:
            await connection.wait_ended()
        finally:
            self._keep(origin, connection, reusable=not connection.is_stale())

    # --- connections -------------------------------------------------------------------------

    async def _connect(self, origin: Origin, connect_timeout: float | None) -> ClientConnection:
        sock = await dial(
            origin,
            within=self._connect_timeout if connect_timeout is None else connect_timeout,
            context=self._tls,
        )
        self._opened_total += 1
        return ClientConnection(
            sock,
            label=origin.label,
            write_stall_timeout=self._write_stall_timeout,
            max_header_bytes=self._max_header_bytes,
        )

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = await anyio.to_thread.run_sync(ssl.create_default_context)
        return self._context

    def _take_idle(self, origin: Origin) -> ClientConnection | None:
        """The connection used last that is still good: its buffers and windows are warm."""
        connections = self._idle.get(origin, [])
        oldest = monotonic() - self._idle_timeout
        while connections:
            connection = connections.pop()
            if connection.idle_since > oldest and not connection.is_stale():
                return connection
            connection.close()
        return None

    def _keep(self, origin: Origin, connection: ClientConnection, *, reusable: bool) -> None:
        connections = self._idle.setdefault(origin, [])
        if not reusable or self._closed or not self._max_idle:
            connection.close()
            return
        if len(connections) >= self._max_idle:
            connections.pop(0).close()
        connections.append(connection)


class _Block:
    """An answer, closed at the end of a block. A generator's would cost twice as much."""

    __slots__ = ("_open", "_response")

    def __init__(self, open_response: Callable[[], Awaitable[Response]]) -> None:
        self._open = open_response
        self._response: Response | None = None

    async def __aenter__(self) -> Response:
        self._response = await self._open()
        return self._response

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._response is not None:
            self._response.close()
