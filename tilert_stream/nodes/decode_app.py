"""A decode node's HTTP: a router's requests in, token ids out.

TileRT's paths and bodies, and what ours adds:

=======================  =====================================================================
``POST /pd/reserve``     ours: a slot and a landing region, before anything is prefilled
``POST /pd/renew``       ours: the reservation's lease, while prefill takes its time
``POST /pd/decode``      JSON lines of ids, or one object
``POST /pd/cancel``      gives a request up, in whatever phase it is
``GET /decode_status``   ``idle`` while a slot is free
``GET /health``          the process answers
``GET /ready``           ours: it takes requests
``GET /metrics``         ours: Prometheus' text
=======================  =====================================================================

Errors of ``/pd/*`` are flat, as TileRT's: ``{"error": "…", "code": "…", "rid": "…"}``.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route, Router

from tilert_stream.asgi.disconnect import unless_left
from tilert_stream.asgi.endpoint import (
    Endpoint,
    json_answer,
    not_found,
    ready_answer,
)
from tilert_stream.asgi.request_body import check_grammar, read_body
from tilert_stream.asgi.request_id import answer_id
from tilert_stream.asgi.response import JSON, JSONBody, StreamResponse
from tilert_stream.errors import Cancelled, NotFound, TilertStreamError
from tilert_stream.openai.encoding import dumps
from tilert_stream.openai.errors import error_headers
from tilert_stream.stages.lines import NDJSON, EncodeLines, EncodeTokens
from tilert_stream.telemetry.record import RequestRecord
from tilert_transports.control.auth import SIGNATURE_HEADER
from tilert_transports.control.errors import HandshakeRefused
from tilert_transports.control.layout import describe, differences
from tilert_transports.control.prompt import PromptIdentity

from .decode_orders import CancelBody, DecodeBody, RenewBody, ReserveBody, read, to_order

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Scope, Send

    from tilert_engine.layouts.abc import Description
    from tilert_stream.abc import Transform
    from tilert_stream.asgi.endpoint import Handler
    from tilert_stream.events import TokenBatch
    from tilert_stream.scope import RequestScope
    from tilert_stream.service import Service
    from tilert_stream.stream import Stream
    from tilert_stream.telemetry.telemetry import Telemetry
    from tilert_transports.control.auth import RequestVerifier

    from .decode_node import DecodeNode, DecodeOrder
    from .decode_orders import PromptBody

__all__ = ("DecodeApp", "LayoutRefused")

MAX_BODY_BYTES: Final = 1024 * 1024
"""Ids are few here: the prompt stays with prefill."""

SIGNATURE: Final = SIGNATURE_HEADER.encode()


class DecodeApp:
    """A decode node as an ASGI app.

    :param service: runs each order through the node's pipeline.
    :param layout: the node's own KV layout, field by field.
    :param eos_ids: the served model's stop tokens.
    :param port: where KV caches come in; entered, like ``service``, by the lifespan.
    :param verifier: checks that a request comes from this cluster; None lets everybody in.
    :param telemetry: counts requests and logs them; None: nobody does, and ``/metrics`` is not
        there.
    """

    def __init__(
        self,
        node: DecodeNode[Any],
        service: Service[TokenBatch],
        *,
        layout: Description,
        eos_ids: frozenset[int],
        port: AbstractAsyncContextManager[object],
        verifier: RequestVerifier | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.node = node
        self.service = service
        self._layout = layout
        self._eos_ids = eos_ids
        self._port = port
        self._verifier = verifier
        self._streams: dict[str, Stream[bytes]] = {}
        if telemetry is not None:
            telemetry.watch(service)
        self._router = Router(
            routes=[
                Route("/pd/reserve", Endpoint(POST=self._signed(self._reserve))),
                Route("/pd/renew", Endpoint(POST=self._signed(self._renew))),
                Route("/pd/decode", Endpoint(POST=self._signed(self._decode))),
                Route("/pd/cancel", Endpoint(POST=self._signed(self._cancel))),
                Route("/decode_status", Endpoint(GET=self._status)),
                Route("/health", Endpoint(GET=json_answer({"status": "ok"}))),
                Route("/ready", Endpoint(GET=ready_answer(service))),
                *([] if telemetry is None else [telemetry.route()]),
            ],
            redirect_slashes=False,
            default=not_found,
            lifespan=lambda _app: self.lifespan(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or an ASGI server's lifespan."""
        await self._router(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Open the control port, and start the engine."""
        async with self._port, self.service:
            yield

    # --- /pd/* -------------------------------------------------------------------------------

    def _signed(self, handle: Callable[[bytes, Scope, Receive, Send], Awaitable[None]]) -> Handler:
        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            body = await read_body(scope, receive, MAX_BODY_BYTES)
            if self._verifier is not None:
                given = next((value for name, value in scope["headers"] if name == SIGNATURE), None)
                header = None if given is None else given.decode("latin-1")
                self._verifier.check(header, scope["method"], _target(scope), body)
            await handle(body, scope, receive, send)

        return checked

    async def _reserve(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        asked = read(ReserveBody, body)
        found = () if asked.layout is None else differences(self._layout, asked.layout)
        if found:
            raise LayoutRefused(describe(found))
        wait = asked.wait_s or 0
        promise = partial(
            self.node.promise,
            asked.rid,
            asked.max_len,
            needs=asked.needs or (),
            wait=wait,
            prompt=None if asked.prompt is None else _identity(asked.prompt),
            attempt=asked.attempt,
        )
        granted = await (unless_left(scope, receive, promise) if wait else promise())
        answer = {
            "rid": granted.request,
            "incarnation": granted.incarnation,
            "generation": granted.generation,
            "region": granted.region.id,
            "ttl": granted.ttl,
        }
        try:
            await JSONBody(dumps(answer))(scope, receive, send)
        except BaseException:
            # The router has left without its grant.
            self.node.withdraw(asked.rid)
            raise

    async def _renew(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        asked = read(RenewBody, body)
        ttl = self.node.renew(asked.rid, asked.generation)
        await JSONBody(dumps({"rid": asked.rid, "ttl": ttl}))(scope, receive, send)

    async def _decode(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(answer_id(scope), endpoint=scope["path"])
        with self.service.observers.refusals(record):
            asked = read(DecodeBody, body)
            order = to_order(asked, self._eos_ids)
            await check_grammar(order, self.node.check_grammar)
        record.stream = streamed = asked.stream is not False
        encode = EncodeLines(order.times) if streamed else EncodeTokens(order.times)
        response = StreamResponse(
            self._open(order, encode, record),
            content=NDJSON if streamed else JSON,
            cut_on_error=False,
            refuse=lambda error, _headers: _FlatError(error, order.id),
        )
        await response(scope, receive, send)

    @asynccontextmanager
    async def _open(
        self,
        order: DecodeOrder,
        encode: Callable[[RequestScope], Transform[TokenBatch, bytes]],
        record: RequestRecord,
    ) -> AsyncGenerator[Stream[bytes]]:
        async with self.service.open(order, encode, record=record) as stream:
            self._streams[order.id] = stream
            try:
                yield stream
            finally:
                self._streams.pop(order.id, None)

    async def _cancel(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        asked = read(CancelBody, body)
        if not self.node.holds(asked.rid, asked.attempt):
            raise NotFound(f"no request {asked.rid} holds a slot here")
        stream = self._streams.get(asked.rid)
        if stream is not None:
            stream.fail(Cancelled("the router has given the request up"))
        else:
            self.node.withdraw(asked.rid)
        await JSONBody(dumps({"cancelled": asked.rid}))(scope, receive, send)

    # --- what health checks ask --------------------------------------------------------------

    async def _status(self, scope: Scope, receive: Receive, send: Send) -> None:
        requests = self.node.requests
        slots = self.node.admission.statistics()
        answer = {
            "status": "busy" if self.node.full else "idle",
            "current_rid": requests[0] if requests else None,
            "slots": slots.slots,
            "busy": slots.busy,
            "capabilities": sorted(self.node.capabilities),
        }
        await JSONBody(dumps(answer))(scope, receive, send)


def _identity(prompt: PromptBody) -> PromptIdentity:
    return PromptIdentity(prompt.tokens, prompt.last_token, prompt.digest)


class LayoutRefused(HandshakeRefused):
    """Prefill's KV caches do not fit this node's engine."""

    status = 409
    code = "kv_layout_mismatch"


class _FlatError(JSONBody):
    """An error as TileRT's routers read it."""

    def __init__(self, error: TilertStreamError, rid: str) -> None:
        super().__init__(
            dumps({"error": error.message, "code": error.code, "rid": rid}),
            status=error.status,
            headers=tuple(error_headers(error)),
        )


def _target(scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return (path + b"?" + query if query else path).decode("latin-1")
