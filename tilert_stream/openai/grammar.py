"""``response_format`` and vLLM's ``structured_outputs`` in, the grammar of the answer out.

A grammar is JSON text as ``llguidance`` reads it (https://github.com/guidance-ai/llguidance,
``docs/syntax.md``): ``{"grammars": [{"json_schema": {…}}]}``, or with ``lark_grammar``. No engine,
and not the library, is needed to write it; whether it can be followed is found out when it is
compiled.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

import orjson

from ..errors import InvalidRequest
from .describe import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = (
    "answer_grammar",
    "grammar_param",
    "lark_grammar",
    "lark_string",
    "schema_grammar",
    "structured_outputs",
)

SCHEMA: Final = "response_format.json_schema.schema"
ANY_OBJECT: Final[Mapping[str, object]] = {"type": "object"}
"""``json_object``: OpenAI promises an object."""
WHITESPACE: Final = {"whitespace_pattern": "( |\\n[ \\t]{0,20})?"}
"""Between JSON's tokens: a space, or a new line with its indentation. A model that may write any
amount of it may never come to an end."""


def answer_grammar(
    response_format: Mapping[str, object] | None, structured: Mapping[str, object] | None = None
) -> str | None:
    """The grammar that a request asks for; None where the answer is free.

    :raises ~tilert_stream.errors.InvalidRequest: it is none that can be written, or there are two.
    """
    grammar = None if response_format is None else _of_format(response_format)
    if structured is None:
        return grammar
    if grammar is not None:
        raise InvalidRequest(
            "response_format and structured_outputs both say what the answer is to be; send one of"
            " them",
            param="structured_outputs",
        )
    return _of_structured(structured)


def grammar_param(
    response_format: Mapping[str, object] | None, structured: Mapping[str, object] | None
) -> str:
    """The field that a request's grammar is made from; it has one at most."""
    if structured is not None:
        asked = [name for name, value in structured.items() if value not in (None, False)]
        return ".".join(("structured_outputs", *asked))
    kind = None if response_format is None else response_format.get("type")
    if kind in (None, "text"):
        return "tool_choice"
    return SCHEMA if kind == "json_schema" else "response_format"


def structured_outputs(grammar: str) -> dict[str, object]:
    """``grammar`` as vLLM's ``structured_outputs``, for a server that has its API."""
    parts = cast("dict[str, list[dict[str, object]]]", orjson.loads(grammar))["grammars"]
    schema = parts[0].get("json_schema")
    return {"grammar": parts[0]["lark_grammar"]} if schema is None else {"json": schema}


def schema_grammar(schema: Mapping[str, object], param: str | None = None) -> str:
    """The grammar of JSON that ``schema`` describes.

    :param param: the field that it came in.
    :raises ~tilert_stream.errors.InvalidRequest: it nests deeper than can be written.
    """
    grammar = {"grammars": [{"json_schema": {"x-guidance": WHITESPACE} | dict(schema)}]}
    try:
        return orjson.dumps(grammar).decode()
    except orjson.JSONEncodeError as error:
        # What was parsed can be written again, but for its depth: a schema may come 1,024 levels
        # deep, and 254 can be written.
        raise InvalidRequest(
            f"{param or 'the schema'} nests too deep ({error}); send one of at most 250 levels",
            param=param,
        ) from error


def lark_grammar(source: str) -> str:
    """The grammar that ``source`` writes in llguidance's variant of Lark."""
    return orjson.dumps({"grammars": [{"lark_grammar": source}]}).decode()


def lark_string(text: str) -> str:
    """``text`` as a terminal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def _of_format(given: Mapping[str, object]) -> str | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return schema_grammar(ANY_OBJECT)
    if kind != "json_schema":
        raise InvalidRequest(
            f"response_format.type is {describe(kind)}; it must be text, json_object or"
            " json_schema",
            param="response_format.type",
        )
    named = _object(given.get("json_schema"), "response_format.json_schema")
    return schema_grammar(_object(named.get("schema"), SCHEMA), SCHEMA)


def _of_structured(given: Mapping[str, object]) -> str:
    asked = {name: value for name, value in given.items() if value not in (None, False)}
    if len(asked) != 1:
        raise InvalidRequest(
            f"structured_outputs has {len(asked)} constraints; it needs exactly one of json,"
            " json_object, regex, choice, grammar",
            param="structured_outputs",
        )
    ((name, value),) = asked.items()
    param = f"structured_outputs.{name}"
    if name == "json_object":
        return schema_grammar(ANY_OBJECT)
    if name == "json":
        return schema_grammar(_object(_parsed(value), param), param)
    if name == "choice":
        # One terminal, which the lexer reads: of a rule's branches the parser takes 2,000 at most.
        words = dict.fromkeys(_choices(value, param))
        return lark_grammar("start: CHOICE\nCHOICE: " + " | ".join(map(lark_string, words)))
    if name not in ("grammar", "regex"):
        raise InvalidRequest(
            f"{param} is not served; send json, json_object, regex, choice or grammar", param=param
        )
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} is {describe(value)}; it must be a string", param=param)
    if name == "grammar":
        return lark_grammar(value)
    return lark_grammar("start: /" + value.replace("/", "\\/") + "/")


def _choices(value: object, param: str) -> list[str]:
    choices = cast("list[object]", value) if isinstance(value, list) else []
    words = [each for each in choices if isinstance(each, str) and each]
    if not words or len(words) != len(choices):
        raise InvalidRequest(
            f"{param} must be a list of one string or more, none empty", param=param
        )
    return words


def _parsed(value: object) -> object:
    """A schema may come as JSON text, too."""
    if not isinstance(value, str):
        return value
    try:
        return cast("object", orjson.loads(value))
    except orjson.JSONDecodeError:
        return value


def _object(value: object, param: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param} is {describe(value)}; it must be an object", param=param)
    return cast("dict[str, object]", value)
