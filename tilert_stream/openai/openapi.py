"""The API described: typed requests, answers and declared parameters in, OpenAPI 3.1 out."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic.json_schema import models_json_schema

from .. import __version__
from . import answers
from .chat import ChatRequest
from .completions import CompletionRequest
from .constraints import constrain
from .generate import GenerateBody, TokenSampling
from .parameters import PARAMETERS
from .tokenizing import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaMode

    from ..model.card import ModelCard
    from .envelope import Endpoint

__all__ = ("describe_api", "docs_page")

Object = dict[str, Any]
REF: Final = "#/components/schemas/{model}"
REQUESTS: Final[tuple[tuple[type[BaseModel], Endpoint], ...]] = (
    (ChatRequest, "chat"),
    (CompletionRequest, "completion"),
    (TokenSampling, "completion"),
)
POSTS: Final[dict[str, tuple[tuple[type[BaseModel], ...], type[BaseModel], str]]] = {
    "/v1/chat/completions": (
        (ChatRequest,),
        answers.ChatCompletion,
        "Answer a chat; with stream: true as server-sent events.",
    ),
    "/v1/completions": (
        (CompletionRequest,),
        answers.Completion,
        "Continue a text; with stream: true as server-sent events.",
    ),
    "/inference/v1/generate": (
        (GenerateBody,),
        answers.GenerateAnswer,
        "Token ids in, token ids out, as vLLM's.",
    ),
    "/tokenize": (
        (TokenizeTextRequest, TokenizeChatRequest),
        answers.TokenizeAnswer,
        "The token ids of a text or a chat.",
    ),
    "/detokenize": ((DetokenizeRequest,), answers.DetokenizeAnswer, "The text of token ids."),
}
GETS: Final[dict[str, tuple[type[BaseModel], str]]] = {
    "/v1/models": (answers.ModelList, "The served model, under each of its names."),
    "/v1/models/{model}": (answers.ModelObject, "One name of it."),
}
STREAMED: Final[dict[str, type[BaseModel]]] = {
    "/v1/chat/completions": answers.ChatChunk,
    "/v1/completions": answers.CompletionChunk,
    "/inference/v1/generate": answers.GenerateChunk,
}
FAILURES: Final = {
    "400": "The request is wrong, or asks for what is not served; param names the field.",
    "401": "The API key is missing or wrong.",
    "404": "No model of that name.",
    "413": "The body is too long.",
    "415": "The body is not announced as JSON.",
    "429": "Busy: retry-after and retry-after-ms say when to come again.",
    "500": "A fault of the server.",
    "503": "Starting, draining, or without an engine.",
    "504": "A part of the request took too long.",
}


def describe_api(card: ModelCard) -> Object:
    """The whole description, for a server of ``card``."""
    models: set[type[BaseModel]] = {answers.ErrorAnswer}
    for requests, answer, _ in POSTS.values():
        models |= {*requests, answer}
    models |= {answer for answer, _ in GETS.values()} | {*STREAMED.values()}
    mode: JsonSchemaMode = "validation"
    ordered = sorted(models, key=lambda model: model.__name__)
    _, made = models_json_schema([(model, mode) for model in ordered], ref_template=REF)
    schemas = cast("Object", made["$defs"])
    for request, endpoint in REQUESTS:
        _declare(schemas[request.__name__]["properties"], endpoint, card)
    constrain(schemas, card)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tilert_stream", "version": __version__},
        "paths": {path: {"post": _post(path)} for path in POSTS}
        | {path: {"get": _get(path, card)} for path in GETS},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _declare(properties: Object, endpoint: Endpoint, card: ModelCard) -> None:
    """Say of each field what follows from it; fields that are only refused take what is fine."""
    for each in PARAMETERS:
        if endpoint not in each.endpoints:
            continue
        refused = each.answer == "refused" or (
            each.needs is not None and each.needs not in card.capabilities
        )
        answer = "refused" if refused else each.answer
        why = each.without or each.note if refused else each.note
        if not refused and each.answer == "served" and each.name not in properties:
            continue  # It has a place of its own: the ids beside the parameters of sampling.
        schema: Object = properties.get(each.name, {})
        if refused:
            schema = {"enum": [None, *each.no_effect]}
        properties[each.name] = schema | {"description": f"{answer}: {why}"}


def _ref(model: type[BaseModel]) -> Object:
    return {"$ref": REF.format(model=model.__name__)}


def _content(model: type[BaseModel]) -> Object:
    return {"application/json": {"schema": _ref(model)}}


def _event(chunk: type[BaseModel]) -> Object:
    """One event: OpenAPI before 3.2 has no other word for a stream than the schema of its items."""
    json: Object = {
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_ref(chunk), _ref(answers.ErrorAnswer)]},
    }
    return {
        "description": "one event; the last one's data is [DONE]",
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "string", "anyOf": [{"const": "[DONE]"}, json]}},
    }


def _failures(codes: Sequence[str]) -> Object:
    return {
        code: {"description": FAILURES[code], "content": _content(answers.ErrorAnswer)}
        for code in codes
    }


def _post(path: str) -> Object:
    requests, answer, summary = POSTS[path]
    schemas = [_ref(request) for request in requests]
    content = _content(answer)
    if path in STREAMED:
        content["text/event-stream"] = {"schema": _event(STREAMED[path])}
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}
                }
            },
        },
        "responses": {"200": {"description": "The answer.", "content": content}}
        | _failures(tuple(FAILURES)),
    }


def _get(path: str, card: ModelCard) -> Object:
    answer, summary = GETS[path]
    described: Object = {
        "summary": summary,
        "responses": {"200": {"description": "The answer.", "content": _content(answer)}}
        | _failures(("401", "404") if "{" in path else ("401",)),
    }
    if "{" in path:
        described["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"enum": [*card.names]}}
        ]
    return described


def docs_page(description: Mapping[str, Any]) -> str:
    """``description`` as a page that needs nothing from elsewhere."""
    schemas: Object = description["components"]["schemas"]
    rows: list[str] = []
    for path, methods in description["paths"].items():
        for method, each in methods.items():
            rows.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            rows.append(f"<p>{escape(each['summary'])}</p>")
            rows += _fields(each, schemas)
    title = f"{description['info']['title']} {description['info']['version']}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        "<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "td{padding:.2em 1em .2em 0;vertical-align:top}</style>"
        f"<h1>{title}</h1><p><a href=openapi.json>openapi.json</a></p>{''.join(rows)}</html>\n"
    )


def _fields(operation: Mapping[str, Any], schemas: Object) -> list[str]:
    if "requestBody" not in operation:
        return []
    schema: Object = operation["requestBody"]["content"]["application/json"]["schema"]
    rows = ["<table>"]
    for part in schema.get("oneOf", [schema]):
        for name, field in schemas[part["$ref"].rpartition("/")[2]]["properties"].items():
            text = escape(str(field.get("description", "")))
            rows.append(f"<tr><td><code>{escape(name)}</code><td>{text}")
    return [*rows, "</table>"]
