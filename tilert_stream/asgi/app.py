"""The ASGI app: HTTP requests in, server-sent events or JSON out.

Served by any ASGI server, or mounted in an existing app, whose lifespan then enters ours::

    app = App(service, card)

    @asynccontextmanager
    async def lifespan(host):
        async with app.lifespan():
            yield

    Starlette(routes=[Mount("/llm", app=app)], lifespan=lifespan)
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from .. import __version__
from ..openai.chat import parse_chat
from ..openai.completions import parse_completion
from ..openai.envelope import REASONING_FIELDS
from ..openai.generate import parse_generate
from ..openai.token_names import TokenNames
from ..stages.gathered import Gathered
from ..stages.plain import EncodeJSON
from ..stages.sse import EncodeSSE
from ..stages.token_ids import EncodeTokenIds
from ..telemetry.record import RequestRecord, Tally
from .auth import KeyRing
from .endpoint import Endpoint, json_answer, model_answer, models_answer, not_found, ready_answer
from .fan_out import open_all, requests_of
from .fixed_paths import FixedPaths
from .further import further_routes
from .request_body import check_grammar, check_media_type, parse_body, read_body
from .request_headers import client_request_id, wants_timing
from .request_id import answer_id, id_header, name_request
from .response import EVENT_STREAM, JSON, StreamResponse

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Sequence,
    )
    from contextlib import AbstractAsyncContextManager

    from starlette.types import ASGIApp, Receive, Scope, Send

    from ..events import GenerateRequest, TextDelta
    from ..model.card import ModelCard
    from ..openai.envelope import Envelope
    from ..service import Service
    from ..stream import Stream
    from ..telemetry.telemetry import Telemetry
    from .endpoint import Handler

    Parse = Callable[[bytes, ModelCard], tuple[GenerateRequest, Envelope]]

__all__ = ("App",)


class App:
    """OpenAI's chat and text completions over a service.

    :param service: entered by ``lifespan``, which an ASGI server calls by itself.
    :param card: the served model.
    :param api_keys: one of them must come as bearer token with every ``/v1`` request; none: open.
    :param max_body_bytes: a longer request body is refused with 413.
    :param routes: further paths of a host of ours.
    :param done_after_error: end a failed stream with ``[DONE]``, as some peers do, instead of
        cutting it. Several clients then take it for a success.
    :param heartbeat: seconds of silence after which an event stream gets a comment, for proxies
        that close what is idle; ``inf``: never. Some clients fail on a comment.
    :param cors_origins: origins whose pages may read the answers; ``*`` is all of them.
    :param reasoning_fields: the names that reasoning goes by in messages and deltas.
    :param shared: what the engines elsewhere can do, of all that ``card`` has.
    :param telemetry: counts requests and logs them; None: nobody does, and ``/metrics`` is not
        there.
    """

    def __init__(
        self,
        service: Service[TextDelta],
        card: ModelCard,
        *,
        api_keys: Iterable[str] = (),
        max_body_bytes: int = 32 * 1024 * 1024,
        done_after_error: bool = False,
        routes: Iterable[Route] = (),
        heartbeat: float = inf,
        cors_origins: Sequence[str] = (),
        reasoning_fields: Sequence[str] = REASONING_FIELDS,
        telemetry: Telemetry | None = None,
        shared: Callable[[], Awaitable[Collection[str] | None]] | None = None,
    ) -> None:
        self.service = service
        self.card = card
        self._names = TokenNames(card.tokenizer)
        self._keys = KeyRing(api_keys)
        self._max_body_bytes = max_body_bytes
        self._done_after_error = done_after_error
        self._heartbeat = heartbeat
        self._reasoning_fields = reasoning_fields
        if telemetry is not None:
            telemetry.watch(service)
            routes = (*routes, telemetry.route())
        generating = (
            Route("/v1/chat/completions", Endpoint(POST=self._generate(parse_chat))),
            Route("/v1/completions", Endpoint(POST=self._generate(parse_completion))),
            Route("/inference/v1/generate", Endpoint(POST=self._generate(parse_generate))),
        )
        router = Router(
            routes=[
                *generating,
                Route("/v1/models", Endpoint(GET=models_answer(card, self._keys, shared))),
                Route(
                    "/v1/models/{model:path}", Endpoint(GET=model_answer(card, self._keys, shared))
                ),
                *further_routes(card, self._keys, max_body_bytes),
                Route("/health", Endpoint(GET=json_answer({"status": "ok"}))),
                Route("/ready", Endpoint(GET=ready_answer(service))),
                Route("/version", Endpoint(GET=json_answer({"version": __version__}))),
                *routes,
            ],
            redirect_slashes=False,
            default=not_found,
            lifespan=lambda _app: self.lifespan(),
        )
        self._router: ASGIApp = FixedPaths(router, generating)
        if cors_origins:
            # It stands before the keys: a browser asks for leave without one.
            self._router = CORSMiddleware(
                self._router,
                allow_origins=cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("x-request-id", "retry-after", "retry-after-ms", "server-timing"),
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or an ASGI server's lifespan."""
        await self._router(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Enter the service. A host that mounts the app does this in its own lifespan."""
        async with self.service:
            yield

    def _generate(self, parse: Parse) -> Handler:
        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            # The body is let go of before the answer begins: it may be large, and the answer long.
            response = await self._read(parse, scope, receive)
            await response(scope, receive, send)

        return handle

    async def _read(self, parse: Parse, scope: Scope, receive: Receive) -> StreamResponse:
        headers = scope["headers"]
        record = RequestRecord(endpoint=scope["path"], client_id=client_request_id(headers))
        with self.service.observers.refusals(record, lambda: answer_id(scope)):
            self._keys.check(headers)
            check_media_type(headers)
            body = await read_body(scope, receive, self._max_body_bytes)
            request, envelope = await parse_body(parse, body, self.card)
            name_request(scope, request.id)
            record.model, record.stream = envelope.model, envelope.stream
            await check_grammar(request, self.card.check_grammar)
            opened = self._open(request, envelope, record, timing=wants_timing(headers))
        return StreamResponse(
            opened,
            content=EVENT_STREAM if envelope.stream else JSON,
            headers=id_header(record.client_id or request.id),
            cut_on_error=not self._done_after_error,
            heartbeat=self._heartbeat if envelope.stream else inf,
            server_timing=not envelope.stream,
        )

    def _open(
        self, request: GenerateRequest, envelope: Envelope, record: RequestRecord, *, timing: bool
    ) -> AbstractAsyncContextManager[Stream[bytes]]:
        if envelope.choices == 1:
            encode = self._encoder(envelope, timing=timing)
            return self.service.open(request, encode, record=record)
        gathered = Gathered()
        opened = [
            self.service.open(
                each,
                self._encoder(named, timing=False, gathered=gathered),
                record=record if named.index == 0 else _another(record),
            )
            for each, named in requests_of(request, envelope)
        ]
        return open_all(opened, envelope, gathered, done_after_error=self._done_after_error)

    def _encoder(
        self, envelope: Envelope, *, timing: bool, gathered: Gathered | None = None
    ) -> EncodeSSE | EncodeJSON | EncodeTokenIds:
        if envelope.kind == "tokens":
            return EncodeTokenIds(
                envelope,
                self._names,
                done_after_error=self._done_after_error,
                gathered=gathered,
            )
        if not envelope.stream:
            return EncodeJSON(
                envelope,
                reasoning_fields=self._reasoning_fields,
                timing=timing,
                names=self._names,
                gathered=gathered,
            )
        return EncodeSSE(
            envelope,
            done_after_error=self._done_after_error,
            reasoning_fields=self._reasoning_fields,
            timing=timing,
            names=self._names,
            gathered=gathered,
        )


def _another(record: RequestRecord) -> RequestRecord:
    """What is noted of a further answer to the same request."""
    return replace(record, tokens=Tally())
