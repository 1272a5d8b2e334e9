"""The list of models, by which clients find what to ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..check import Severity, Theme
from ..json_view import at, items, parsed, text_at, whole
from ..judging import require, skip

if TYPE_CHECKING:
    from ..session import Session

__all__ = ("MODELS",)

MODELS: Final = Theme("models")


@MODELS.check(
    "list",
    Severity.MUST,
    "GET /v1/models: an object 'list' whose data are objects 'model' with id, created and owned_by",
    "OpenAI's API reference; the openai SDK's strict validation; benchmark clients take the id",
    needs="nothing",
)
async def _list(session: Session) -> None:
    exchange = await session.get("/v1/models")
    require(exchange.status == 200, f"status {exchange.status}; it must be 200", exchange)
    listed = parsed(exchange.body)
    require(at(listed, "object") == "list", "'object' is not 'list'", exchange)
    require(items(listed, "data"), "'data' is no list of models", exchange)
    for model in items(listed, "data"):
        require(text_at(model, "id"), "a model has no id", exchange)
        require(at(model, "object") == "model", "a model's 'object' is not 'model'", exchange)
        require(whole(at(model, "created")), "a model's 'created' is no integer", exchange)
        require(text_at(model, "owned_by"), "a model has no 'owned_by'", exchange)


@MODELS.check(
    "retrieve",
    Severity.MAY,
    "GET /v1/models/{id}: the same object for a model of the list",
    "OpenAI's API reference; the openai SDK's models.retrieve",
    needs="nothing",
)
async def _retrieve(session: Session) -> None:
    if session.facts.model is None:
        skip("no model is known")
    exchange = await session.get(f"/v1/models/{session.facts.model}")
    require(exchange.status == 200, f"status {exchange.status}; it must be 200", exchange)
    require(at(parsed(exchange.body), "id") == session.facts.model, "another 'id'", exchange)


@MODELS.check(
    "named",
    Severity.MUST,
    "an answer's 'model' is a string, streamed and not",
    "the openai SDK's models: 'model' is required and never null",
)
async def _named(session: Session) -> None:
    for stream in (False, True):
        answer = await session.ask(stream=stream)
        for chunk in answer.chunks:
            require(text_at(chunk, "model"), "'model' is no string", answer.exchange)
