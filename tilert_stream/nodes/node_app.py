"""A decode node's HTTP, whatever dialect its prefill speaks: orders in, token ids out.

TileRT's paths and bodies, and ``/ready``:

=======================  =====================================================================
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
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeAlias, TypeVar

from starlette.routing import Route, Router

from tilert_stream.asgi.endpoint import Endpoint, json_answer, ready_answer
from tilert_stream.asgi.request_body import check_grammar, read_body
from tilert_stream.asgi.request_id import answer_id, id_header
from tilert_stream.asgi.response import JSON, ErrorResponse, JSONBody, StreamResponse
from tilert_stream.errors import Cancelled, NotFound
from tilert_stream.openai.encoding import dumps
from tilert_stream.openai.errors import error_headers
from tilert_stream.stages.lines import NDJSON, EncodeLines, EncodeTokens
from tilert_stream.telemetry.record import RequestRecord
from tilert_transports.control.auth import NODE_HEADER, SIGNATURE_HEADER
from tilert_transports.control.errors import SignatureInvalid

from .decode_orders import CancelBody, DecodeBody, read, to_order

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from starlette.types import ASGIApp, Receive, Scope, Send

    from tilert_stream.abc import Transform
    from tilert_stream.asgi.endpoint import Handler
    from tilert_stream.cluster.admission import Admission
    from tilert_stream.errors import TilertStreamError
    from tilert_stream.events import Capability, TokenBatch
    from tilert_stream.scope import RequestScope
    from tilert_stream.service import Service
    from tilert_stream.stream import Stream
    from tilert_stream.telemetry.telemetry import Telemetry
    from tilert_transports.control.auth import RequestVerifier

    from .decode_orders import DecodeOrder

__all__ = ("NodeApp", "OrderedNode", "WithBody")

MAX_BODY_BYTES: Final = 1024 * 1024
"""Ids are few here: the prompt stays with prefill."""

NODE: Final = NODE_HEADER.encode()
SIGNATURE: Final = SIGNATURE_HEADER.encode()

WithBody: TypeAlias = "Callable[[bytes, Scope, Receive, Send], Awaitable[None]]"
"""Serves one request whose body has been read."""


class OrderedNode(Protocol):
    """What a router's orders are carried out on."""

    @property
    def admission(self) -> Admission:
        """The slots."""
        ...

    @property
    def full(self) -> bool:
        """Whether no slot is free."""
        ...

    @property
    def requests(self) -> list[str]:
        """The ids that hold a slot."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What a request can ask for."""
        ...

    def check_grammar(self, grammar: str, param: str) -> None:
        """Have the engine compile ``grammar``; blocks, from any thread."""
        ...

    def holds(self, request: str, attempt: int | None = None) -> bool:
        """Whether ``request`` has something here that can be given up."""
        ...

    def withdraw(self, request: str) -> bool:
        """Give up what ``request`` has here, while nothing is decoded for it."""
        ...


NodeT = TypeVar("NodeT", bound=OrderedNode)


class NodeApp(Generic[NodeT]):
    """A decode node as an ASGI app.

    :param service: runs each order through the node's pipeline.
    :param eos_ids: the served model's stop tokens.
    :param port: where KV caches come in; entered, like ``service``, by the lifespan.
    :param verifier: checks that a request comes from this cluster; None lets everybody in.
    :param posts: what a dialect adds, by path.
    :param unknown: answers every other path.
    :param telemetry: counts requests and logs them; None: nobody does, and ``/metrics`` is not
        there.
    """

    def __init__(
        self,
        node: NodeT,
        service: Service[TokenBatch],
        *,
        eos_ids: frozenset[int],
        port: AbstractAsyncContextManager[object],
        verifier: RequestVerifier | None,
        posts: Mapping[str, WithBody],
        unknown: ASGIApp,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.node = node
        self.service = service
        self._eos_ids = eos_ids
        self._port = port
        self._verifier = verifier
        self._streams: dict[str, Stream[bytes]] = {}
        if telemetry is not None:
            telemetry.watch(service)
        posts = {**posts, "/pd/decode": self._decode, "/pd/cancel": self._cancel}
        self._router = Router(
            routes=[
                *(Route(path, Endpoint(POST=self._signed(post))) for path, post in posts.items()),
                Route("/decode_status", Endpoint(GET=self._status)),
                Route("/health", Endpoint(GET=json_answer({"status": "ok"}))),
                Route("/ready", Endpoint(GET=ready_answer(service))),
                *([] if telemetry is None else [telemetry.route()]),
            ],
            redirect_slashes=False,
            default=unknown,
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

    def _signed(self, handle: WithBody) -> Handler:
        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            body = await read_body(scope, receive, MAX_BODY_BYTES)
            if self._verifier is not None:
                given = next((value for name, value in scope["headers"] if name == SIGNATURE), None)
                header = None if given is None else given.decode("latin-1")
                try:
                    self._verifier.check(header, scope["method"], _target(scope), body)
                except SignatureInvalid as error:
                    names = ((NODE, self._verifier.node.encode()), *id_header(answer_id(scope)))
                    await ErrorResponse(error, names)(scope, receive, send)
                    return
            await handle(body, scope, receive, send)

        return checked

    async def _decode(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(endpoint=scope["path"])
        with self.service.observers.refusals(record, lambda: answer_id(scope)):
            asked = read(DecodeBody, body)
            order = to_order(asked, self._eos_ids)
            await check_grammar(order, self.node.check_grammar)
        record.stream = streamed = asked.stream is True
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
