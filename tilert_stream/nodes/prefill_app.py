"""A prefill node's HTTP: the part of vLLM's API that a router needs.

``POST /v1/completions`` and ``POST /v1/chat/completions`` with ``max_tokens`` 1; the answer says
the first token's id in both of vLLM's ways. ``kv_transfer_params`` says where the KV cache goes.
``GET /v1/models`` describes the KV caches besides (``kv_layout``).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from starlette.routing import Route, Router

from tilert_stream.asgi.auth import KeyRing
from tilert_stream.asgi.endpoint import (
    Endpoint,
    json_answer,
    not_found,
    ready_answer,
)
from tilert_stream.asgi.request_body import check_grammar, parse_body, read_body
from tilert_stream.asgi.request_id import answer_id
from tilert_stream.asgi.response import JSON, JSONBody, StreamResponse
from tilert_stream.cluster.prefill_call import LAYOUT
from tilert_stream.openai.encoding import dumps
from tilert_stream.openai.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from tilert_stream.openai.objects import choice_object, model_list, response
from tilert_stream.openai.token_names import TokenNames
from tilert_stream.telemetry.record import RequestRecord

from .prefill_orders import read_prefill_order

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Scope, Send

    from tilert_engine.layouts.abc import Description
    from tilert_stream.abc import Transform
    from tilert_stream.asgi.endpoint import Handler
    from tilert_stream.events import Finished, TokenBatch, TokenLogprob
    from tilert_stream.model.card import ModelCard
    from tilert_stream.model.tokenizer import TextTokenizer
    from tilert_stream.openai.envelope import Endpoint as EndpointKind
    from tilert_stream.openai.envelope import Envelope
    from tilert_stream.scope import RequestScope
    from tilert_stream.service import Service
    from tilert_stream.telemetry.telemetry import Telemetry

__all__ = ("PrefillApp",)


class PrefillApp:
    """A prefill node as an ASGI app.

    :param desk: where KV caches leave; entered, like ``service``, by the lifespan.
    :param layout: of the KV caches, field by field: routers read it to know whom they fit.
    :param api_keys: one of them must come as bearer token with every ``/v1`` request; none: open.
    :param telemetry: counts requests and logs them; None: nobody does, and ``/metrics`` is not
        there.
    """

    def __init__(
        self,
        service: Service[TokenBatch],
        card: ModelCard,
        tokenizer: TextTokenizer,
        desk: AbstractAsyncContextManager[object],
        *,
        layout: Description,
        api_keys: Iterable[str] = (),
        max_body_bytes: int = 32 * 1024 * 1024,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.service = service
        self._card = card
        self._layout = layout
        self._tokenizer = tokenizer
        self._desk = desk
        self._keys = KeyRing(api_keys)
        self._max_body_bytes = max_body_bytes
        if telemetry is not None:
            telemetry.watch(service)
        self._router = Router(
            routes=[
                Route("/v1/completions", Endpoint(POST=self._prefill("completion"))),
                Route("/v1/chat/completions", Endpoint(POST=self._prefill("chat"))),
                Route("/v1/models", Endpoint(GET=self._models)),
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
        """Open the desk, and start the engine."""
        async with self._desk, self.service:
            yield

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._keys.check(scope["headers"])
        models = model_list([self._card])
        for model in cast("list[dict[str, object]]", models["data"]):
            model[LAYOUT] = self._layout
        await JSONBody(dumps(models))(scope, receive, send)

    def _prefill(self, kind: EndpointKind) -> Handler:
        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            record = RequestRecord(endpoint=scope["path"], stream=False)
            with self.service.observers.refusals(record, lambda: answer_id(scope)):
                self._keys.check(scope["headers"])
                body = await read_body(scope, receive, self._max_body_bytes)
                order, envelope = await parse_body(read_prefill_order, body, self._card, kind)
                record.model = envelope.model
                await check_grammar(order, self._card.check_grammar)
                encode = _EncodeFirstToken(envelope, self._tokenizer)
                opened = self.service.open(order, encode, record=record)
            answer = StreamResponse(opened, content=JSON)
            await answer(scope, receive, send)

        return handle


class _EncodeFirstToken:
    stage_name = "first_token"

    def __init__(self, envelope: Envelope, tokenizer: TextTokenizer) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer

    def __call__(self, scope: RequestScope) -> Transform[TokenBatch, bytes]:
        return _FirstToken(self._envelope, self._tokenizer, scope)


class _FirstToken:
    def __init__(self, envelope: Envelope, tokenizer: TextTokenizer, scope: RequestScope) -> None:
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._scope = scope
        self._ids: tuple[int, ...] = ()
        self._told: tuple[TokenLogprob, ...] = ()

    def feed(self, batch: TokenBatch) -> Iterable[bytes]:
        self._ids += batch.ids
        self._told += batch.logprobs or ()
        return ()

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        if outcome.error is not None:
            return ()
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        details: dict[str, object] = {"token_ids": self._ids, "logprobs": self._logprobs()}
        of_prompt = self._scope.usage.logprobs
        if of_prompt is not None:
            details["prompt_logprobs"] = prompt_logprobs(of_prompt)
        choice = choice_object(self._envelope, text, outcome, details=details)
        answer = response(self._envelope, (choice,), self._scope.usage, len(self._ids))
        answer["kv_transfer_params"] = None
        return (dumps(answer),)

    def _logprobs(self) -> dict[str, object]:
        """The ids, and their log-probabilities where a router wants them."""
        chat = self._envelope.kind == "chat"
        if self._told:
            shape = chat_logprobs if chat else completion_logprobs
            return shape(self._told, TokenNames(self._tokenizer), as_ids=True)
        names = [f"token_id:{token}" for token in self._ids]
        return {"content": [{"token": name} for name in names]} if chat else {"tokens": names}
