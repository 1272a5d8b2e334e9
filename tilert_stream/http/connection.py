"""The life of one connection: request heads in, an exchange each, and the right way to close.

::

    wait for a head ─► exchange ─► answered, kept alive ─┐
          ▲                │                             │
          └────────────────┼─────────────────────────────┘
                           ├─► answered, to be closed    FIN, and reading on if input is unread
                           ├─► refused by the server     the error, then as above
                           ├─► cut (the app gave up)     FIN where the framing shows it, else RST
                           └─► client gone               RST
"""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from ..errors import TilertStreamError
from .access_log import AccessRecord
from .errors import (
    ClientGone,
    InternalError,
)
from .exchange import Exchange
from .head_reader import HeadReader
from .refusal import refusal
from .scope import NAME_REQUEST, ON_DISCONNECT, SEND_NOW, check_head, http_scope
from .socket_input import SocketInput
from .sockets import (
    SocketWriter,
    close,
    end_output,
    reset,
    wait_delivered,
)
from .tls import handshake

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp, Scope

    from .ledger import Ledger
    from .request_head import RequestHead
    from .scope import Address
    from .settings import ServerSettings

__all__ = ("Connection",)

logger = logging.getLogger("tilert_stream.http")

LINGER_BYTES = 1024 * 1024
"""How much a closing connection reads and throws away."""


class Connection:
    """One accepted socket, from the first byte to the close.

    :param state: what the app's lifespan left for its requests; None without lifespan.
    """

    __slots__ = (
        "_app",
        "_client",
        "_draining",
        "_heads",
        "_input",
        "_ledger",
        "_name",
        "_resets",
        "_server",
        "_settings",
        "_silence",
        "_sock",
        "_state",
        "_writer",
    )

    def __init__(
        self,
        sock: socket.socket,
        client: Address | None,
        server: Address | None,
        app: ASGIApp,
        settings: ServerSettings,
        ledger: Ledger,
        state: dict[str, object] | None,
    ) -> None:
        self._sock = sock
        self._client = client
        self._server = server
        self._app = app
        self._settings = settings
        self._ledger = ledger
        self._state = state
        self._name = f"{client[0]}:{client[1]}" if client else "unix"
        self._writer = SocketWriter(sock, settings.write_stall_timeout)
        self._input = SocketInput(sock)
        self._draining = lambda: ledger.draining
        self._heads = HeadReader(self._input, settings, self._draining)
        self._resets = False
        self._silence = anyio.CancelScope()
        ledger.enter(self)

    async def run(self) -> None:
        """Serve requests until the connection ends; never raises for what client or app do."""
        try:
            if self._ledger.draining:
                self._silence.cancel()
            await handshake(self._sock, self._settings.header_timeout, self._silence)
            while await self._serve_one():
                pass
        except ClientGone as error:
            self._resets = True
            logger.info("%s: %s", self._name, error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket now, whatever is going on. Idempotent."""
        self._input.close()
        if self._resets:
            reset(self._sock)
        else:
            close(self._sock)
        self._ledger.leave(self)

    def close_if_idle(self) -> None:
        """End the connection if it waits for a request of which no byte has come."""
        self._silence.cancel()
        self._heads.end_if_idle()

    # --- one request -------------------------------------------------------------------------

    async def _serve_one(self) -> bool:
        """Take one request through; whether the connection goes on."""
        record = AccessRecord(self._name)
        request: RequestHead | None = None
        try:
            request = await self._heads.next()
            if request is None:
                return False
            record.take(request)
            check_head(request, self._settings)
            scope = http_scope(
                request,
                client=self._client,
                server=self._server,
                root_path=self._settings.root_path,
                secure=isinstance(self._sock, ssl.SSLSocket),
                state=self._state,
            )
            exchange = self._exchange(request, record)
            scope["extensions"][ON_DISCONNECT] = exchange.on_disconnect
            scope["extensions"][SEND_NOW] = exchange.answer.send_now
            scope["extensions"][NAME_REQUEST] = record.name
            exchange.begin(self._heads.take_behind())
            exchange.read_ready()
            # What the app has to do before anything is sent takes as long once more.
            self._input.let_others_pass()
        except TilertStreamError as error:
            await self._refuse(error, record, head_only=_is_head(request))
            if self._settings.access_log:
                record.write()
            return False
        try:
            self._ledger.requests += 1
            self._ledger.requests_total += 1
            # Until the exchange has ended well, closing must not look like the end of a body.
            self._resets = True
            record.ending = "cut"
            return await self._answer(scope, exchange, record, head_only=_is_head(request))
        finally:
            self._ledger.requests -= 1
            self._ledger.gone_total += record.ending == "gone"
            self._ledger.cut_total += record.ending == "cut"
            self._resets = not exchange.answer.complete and (
                exchange.answer.close_delimited
                or (exchange.answer.gone is not None and exchange.refused is None)
            )
            if self._settings.access_log:
                record.write()

    def _exchange(self, request: RequestHead, record: AccessRecord) -> Exchange:
        return Exchange(
            request,
            self._heads.parser,
            self._sock,
            self._input,
            self._writer,
            self._settings,
            record,
            self._draining,
            input_ended=self._heads.input_ended,
        )

    async def _answer(
        self, scope: Scope, exchange: Exchange, record: AccessRecord, *, head_only: bool
    ) -> bool:
        failure: Exception | None = None
        stop = exchange.watch()
        if stop is not None:
            try:
                failure = await self._call(scope, exchange)
            finally:
                stop()
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(exchange.listen, group.cancel_scope)
                failure = await self._call(scope, exchange)
                group.cancel_scope.cancel()
        self._heads.input_ended = exchange.input_ended
        return await self._conclude(exchange, failure, record, head_only=head_only)

    async def _call(self, scope: Scope, exchange: Exchange) -> Exception | None:
        try:
            await self._app(scope, exchange.receive, exchange.answer.send)
        except Exception as error:  # noqa: BLE001 - an app's failure ends its connection only
            return error
        return None

    async def _conclude(
        self,
        exchange: Exchange,
        failure: Exception | None,
        record: AccessRecord,
        *,
        head_only: bool,
    ) -> bool:
        if exchange.answer.complete:
            record.ending = "complete"
            if failure is not None:
                logger.error("The app failed after answering %s", record.request, exc_info=failure)
            # Of a request that was not read to its end the close has been announced.
            keep = failure is None and exchange.answer.gone is None and not exchange.answer.closes
            if keep:
                self._heads.go_on(exchange.behind)
            elif not exchange.input_clean:
                await self._linger()
            return keep
        if exchange.refused is not None and not exchange.answer.head_left:
            await self._refuse(exchange.refused, record, head_only=head_only)
        elif exchange.refused is None and exchange.answer.gone is not None:
            record.ending = "gone"
            logger.info("%s: %s", self._name, exchange.answer.gone)
            logger.debug("The app had nobody to answer %s", record.request, exc_info=failure)
        elif exchange.answer.head_left:
            if failure is not None and exchange.refused is None:
                logger.error("The app failed in its answer to %s", record.request, exc_info=failure)
            await self._cut(exchange)
        else:
            logger.error("The app gave no answer to %s", record.request, exc_info=failure)
            error = InternalError("The server failed to answer; its log has the reason.")
            clean = exchange.input_clean
            await self._refuse(error, record, head_only=head_only, input_clean=clean)
        return False

    # --- endings -----------------------------------------------------------------------------

    async def _refuse(
        self,
        error: TilertStreamError,
        record: AccessRecord,
        *,
        head_only: bool,
        input_clean: bool = False,
    ) -> None:
        self._ledger.refused_total += 1
        record.status = error.status
        record.ending = "refused"
        request_id = record.name_refusal()
        logger.info("%s: %d %s (request %s)", self._name, error.status, error, request_id)
        # A writer of its own: the exchange's may have been told that it is over.
        writer = SocketWriter(self._sock, self._settings.linger_timeout)
        with suppress(ClientGone):
            await writer.write(refusal(error, request_id, head_only=head_only))
            if not input_clean:
                await self._linger()

    async def _cut(self, exchange: Exchange) -> None:
        """End an answer short, so that the client can tell, and has what was sent before."""
        if exchange.answer.close_delimited:
            await wait_delivered(self._sock, self._settings.linger_timeout)
        elif not exchange.input_clean:
            await self._linger()

    async def _linger(self) -> None:
        """Read on for a while: closing with unread input would reset the answer on its way."""
        end_output(self._sock)
        unread = LINGER_BYTES
        with suppress(ClientGone), anyio.move_on_after(self._settings.linger_timeout):
            while unread > 0:
                data = await self._input.receive()
                if not data:
                    return
                unread -= len(data)


def _is_head(request: RequestHead | None) -> bool:
    return request is not None and request.method == b"HEAD"
