"""What a request must keep to beyond its fields' types, as JSON Schema.

In: the schemas that pydantic makes of the requests, and the model's card. Out: the same schemas,
with what the server checks besides: ids of the model's vocabulary, its context, and fields that
need or exclude each other. What depends on a tokenizer or on comparing two numbers has no JSON
Schema; the server refuses it all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from .chat import RESERVED
from .completions import MAX_TOKENS_DEFAULT
from .fields import CHOICES_MAX
from .generate import REFUSED, REFUSED_SAMPLING
from .tokenizing import REFUSED as REFUSED_TOKENIZING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..model.card import ModelCard

__all__ = ("constrain",)

Object = dict[str, Any]
NULL: Final[Object] = {"type": "null"}
NEVER: Final[Object] = {"not": {}, "description": "of a request of the other kind"}
FALSY: Final[tuple[object, ...]] = (None, False, 0, "", [], {})
UNSET: Final = (None, False, 0)
INTEGER_MAX: Final = 2**64 - 1
"""What is beyond is read as a number with a fraction."""
TOKENS_ONLY: Final = "refused: token ids in and token ids out only"
MESSAGE_ROLES: Final = ("system", "developer", "user", "tool")
"""All but the assistant, whose turn may be calls without content."""


def constrain(schemas: Object, card: ModelCard) -> None:
    """Add to ``schemas``, by the names of their types, what holds for a server of ``card``."""
    _bound_integers(schemas)
    _constrain_messages(schemas)
    _constrain_tokenizing(schemas, card)
    chat, completion = schemas["ChatRequest"], schemas["CompletionRequest"]
    body, sampling = schemas["GenerateBody"], schemas["TokenSampling"]
    answer_max = card.max_seq_len - 1
    for each in (chat, completion, body):
        _replace(each, "model", {"enum": [None, *card.names]})
        _when(each, _given_options(), _must("stream", {"const": True}))
    for each in (chat, completion, sampling):
        _limit(each, "min_tokens", answer_max)
        _replace(each, "stop_token_ids", {"anyOf": [_ids(card), NULL]})
    for each in (completion, sampling):
        _limit(each, "max_tokens", answer_max)
    _limit(chat, "max_completion_tokens", answer_max)
    # It is not looked at beside its newer name.
    unset = {"properties": {"max_completion_tokens": NULL}}
    _when(chat, unset, {"properties": {"max_tokens": {"maximum": answer_max}}})
    unset = {"properties": {"max_tokens": NULL}}
    _when(completion, unset, {"properties": {"min_tokens": {"maximum": MAX_TOKENS_DEFAULT}}})
    _replace(completion, "prompt", _prompt(card))
    _replace(body, "token_ids", _ids(card) | {"minItems": 1, "maxItems": answer_max})
    _replace(body, "output_mode", {"enum": [None, "tokens"]})
    body["properties"] |= dict.fromkeys(REFUSED, NULL | {"description": TOKENS_ONLY})
    empty: Object = {"enum": [None, {}]} if "grammar" in card.capabilities else NULL
    for name in REFUSED_SAMPLING:
        fine = {"enum": [None, False]} if name == "echo" else empty
        _replace(sampling, name, fine | {"description": TOKENS_ONLY})
    _constrain_logprobs(schemas, card)
    _constrain_grammars(schemas, card)


def _constrain_messages(schemas: Object) -> None:
    part = schemas["ContentPart"]
    part["properties"] |= {"type": {"const": "text"}, "text": {"type": "string"}}
    part["required"] = ["type", "text"]
    function = schemas["FunctionCall"]["properties"]
    function["arguments"] |= {"description": "a JSON object as text, or empty"}
    message = schemas["Message"]
    properties = message["properties"] | {"function_call": NULL}
    text, *_ = (each for each in properties["content"]["anyOf"] if each != NULL)
    others = properties | {
        "role": {"enum": [*MESSAGE_ROLES]},
        "content": text,
        "tool_calls": {"enum": [None, []]},
    }
    assistant = properties | {"role": {"const": "assistant"}}
    shared = {"type": "object", "additionalProperties": True}
    schemas["Message"] = {
        "title": "Message",
        "oneOf": [
            shared | {"properties": assistant, "required": ["role"]},
            shared | {"properties": others, "required": ["role", "content"]},
        ],
    }
    for name in ("ChatRequest", "TokenizeChatRequest"):
        kwargs = schemas[name]["properties"]["chat_template_kwargs"]
        kwargs |= {"propertyNames": {"not": {"enum": sorted(RESERVED)}}}


def _constrain_tokenizing(schemas: Object, card: ModelCard) -> None:
    text, chat = schemas["TokenizeTextRequest"], schemas["TokenizeChatRequest"]
    for each in (text, chat, schemas["DetokenizeRequest"]):
        _replace(each, "model", {"enum": [None, *card.names]})
    text["properties"]["messages"] = NEVER
    chat["properties"]["prompt"] = NEVER
    chat["properties"] |= {name: {"enum": [*FALSY]} for name in REFUSED_TOKENIZING}
    _replace(schemas["DetokenizeRequest"], "tokens", _ids(card))


def _constrain_logprobs(schemas: Object, card: ModelCard) -> None:
    """What the model can tell is told by the fields themselves; here, when it may be asked."""
    chat, completion = schemas["ChatRequest"], schemas["CompletionRequest"]
    if "logprobs" in card.capabilities:
        _when(
            chat,
            _must("top_logprobs", {"type": "integer", "minimum": 1}),
            _must("logprobs", {"const": True}),
        )
        if "prompt_logprobs" not in card.capabilities:
            echoed = _must("echo", {"const": True})
            _when(completion, echoed, {"properties": {"logprobs": NULL}})
    if "prompt_logprobs" in card.capabilities:
        streamed = _must("stream", {"const": True})
        whole = {"properties": {"prompt_logprobs": NULL}}
        for each in (chat, completion):
            _when(each, streamed, whole)
        _when(schemas["GenerateBody"], streamed, {"properties": {"sampling_params": whole}})


def _constrain_grammars(schemas: Object, card: ModelCard) -> None:
    if "grammar" not in card.capabilities:
        return
    formatted = _must("response_format", _kind("json_object", "json_schema"))
    structured = _must("structured_outputs", {"type": "object"})
    # A grammar says where the answer ends.
    ended = {"ignore_eos": {"enum": [None, False]}, "min_tokens": {"enum": [None, 0]}}
    chat, completion = schemas["ChatRequest"], schemas["CompletionRequest"]
    for each in (chat, completion):
        _replace(each, "response_format", _formats())
        _replace(each, "structured_outputs", {"anyOf": [*_structured(), NULL]})
        _when(each, {"anyOf": [formatted, structured]}, {"properties": ended})
        _when(each, formatted, {"properties": {"structured_outputs": NULL}})
    if card.call_grammar is None:
        _replace(chat, "tool_choice", {"enum": [None, "none", "auto"]})
        return
    name = _must("name", {"type": "string", "minLength": 1}) | {"type": "object"}
    named = _must("function", name)["properties"] | {"type": {"const": "function"}}
    function = {"type": "object", "required": ["type", "function"], "properties": named}
    choices = [{"enum": [None, "none", "auto", "required"]}, function]
    _replace(chat, "tool_choice", {"anyOf": choices})
    forced = _must("tool_choice", {"anyOf": [{"type": "object"}, {"const": "required"}]})
    _when(chat, forced, _must("tools", {"type": "array", "minItems": 1}))
    free = {"structured_outputs": NULL, "response_format": {"anyOf": [_kind("text"), NULL]}}
    _when(chat, forced, {"properties": ended | free})


def _kind(*kinds: str) -> Object:
    return _must("type", {"enum": [*kinds]}) | {"type": "object"}


def _formats() -> Object:
    schema = _must("schema", {"type": "object"}) | {"type": "object"}
    described = _kind("json_schema")
    described["required"].append("json_schema")
    described["properties"]["json_schema"] = schema
    return {"anyOf": [_kind("text", "json_object"), described, NULL]}


def _structured() -> list[Object]:
    """vLLM's: one constraint, beside which others may be unset."""
    words = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}
    constraints: Object = {
        "json": {"anyOf": [{"type": "object"}, {"type": "string"}]},
        "json_object": {"not": {"enum": [*UNSET]}},
        "regex": {"type": "string"},
        "choice": words,
        "grammar": {"type": "string"},
    }
    return [
        _must(name, value) | {"type": "object", "additionalProperties": {"enum": [*UNSET]}}
        for name, value in constraints.items()
    ]


def _bound_integers(value: object) -> None:
    if isinstance(value, dict):
        schema = cast("Object", value)
        if schema.get("type") == "integer":
            schema.setdefault("maximum", INTEGER_MAX)
        parts = [*schema.values()]
    else:
        parts = cast("list[object]", value) if isinstance(value, list) else []
    for part in parts:
        _bound_integers(part)


def _prompt(card: ModelCard) -> Object:
    text: Object = {"type": "string"}
    if not card.tokenizer.encode("", add_special_tokens=True):
        text["minLength"] = 1
    ids = _ids(card) | {"minItems": 1, "maxItems": card.max_seq_len - 1}
    several = {"type": "array", "minItems": 1, "maxItems": CHOICES_MAX}
    return {"oneOf": [text, ids, several | {"items": text}, several | {"items": ids}]}


def _ids(card: ModelCard) -> Object:
    return {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": card.vocab_size - 1},
    }


def _limit(schema: Object, name: str, maximum: int) -> None:
    (number,) = (each for each in schema["properties"][name]["anyOf"] if each != NULL)
    number["maximum"] = maximum


def _replace(schema: Object, name: str, by: Object) -> None:
    kept = {"title", "description"} & schema["properties"][name].keys()
    schema["properties"][name] = {key: schema["properties"][name][key] for key in kept} | by


def _given_options() -> Object:
    fields = ("include_usage", "continuous_usage_stats")
    given = {"type": "object", "anyOf": [{"required": [name]} for name in fields]}
    return _must("stream_options", given)


def _must(name: str, schema: Mapping[str, Any]) -> Object:
    return {"required": [name], "properties": {name: schema}}


def _when(schema: Object, condition: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    schema.setdefault("allOf", []).append({"if": condition, "then": then})
