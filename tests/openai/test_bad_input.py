"""No body may raise anything but a 4xx that names the field."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tilert_stream.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelNotFound,
    TilertStreamError,
    UnsupportedParameter,
)
from tilert_stream.openai.chat import parse_chat
from tilert_stream.openai.completions import parse_completion
from tilert_stream.openai.parameters import PARAMETERS
from tilert_stream.serve.request_options import ENGINE_CAPABILITIES

if TYPE_CHECKING:
    from tilert_stream.model.card import ModelCard

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
A: dict[str, Any] = {"prompt": "a"}


def refused_chat(card: ModelCard, body: object) -> TilertStreamError:
    with pytest.raises(TilertStreamError) as caught:
        parse_chat(body if isinstance(body, bytes) else orjson.dumps(body), card)
    assert 400 <= caught.value.status < 500
    return caught.value


def refused_completion(card: ModelCard, body: object) -> TilertStreamError:
    with pytest.raises(TilertStreamError) as caught:
        parse_completion(orjson.dumps(body), card)
    assert 400 <= caught.value.status < 500
    return caught.value


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (b"{", 1),
        (b'{"a": 1,}', 7),
        (b"\xff", 0),
        ('{"é": x}'.encode(), 7),
        ('{"é": "'.encode() + b'\xff"}', 8),
        (b'{"a": "\\ud800"}', 7),
        (b'{"a": "\\ud800\\u0041"}', None),
        (b'{"a": NaN}', 6),
        (b'{"a": Infinity}', 6),
        (b'{"a": -Infinity}', None),
        (b'{"a": ' + b"9" * 5000 + b"}", 6),
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, None),
        (b"\xef\xbb\xbf{}", 0),
        (b"{} {}", 3),
    ],
)
def test_not_json(card: ModelCard, body: bytes, offset: int | None) -> None:
    error = refused_chat(card, body)
    assert error.status == 400
    assert error.type == "invalid_request_error"
    assert error.param is None
    assert "not valid JSON" in error.message
    place = int(error.message.rpartition("byte offset ")[2])
    assert place == offset if offset is not None else 0 < place < len(body)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"5", b'"text"', b"[{}]"])
def test_not_an_object(card: ModelCard, body: bytes) -> None:
    error = refused_chat(card, body)
    assert error.param is None
    assert "must be a JSON object" in error.message


CHAT_REFUSALS: list[tuple[dict[str, object], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": None, "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
        "messages[0].tool_calls[0].function",
    ),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 5.0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1e30}, "seed"),
    ({"stop_token_ids": [1, -1]}, "stop_token_ids[1]"),
    ({"stop_token_ids": [260]}, "stop_token_ids[0]"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
    ({"include_stop_str_in_output": "true"}, "include_stop_str_in_output"),
    ({"ignore_eos": "true"}, "ignore_eos"),
    ({"model": 5}, "model"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    (
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        "chat_template_kwargs.add_generation_prompt",
    ),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_REFUSALS)
def test_wrong_chat_field(card: ModelCard, fields: dict[str, object], param: str) -> None:
    error = refused_chat(card, HI | fields)
    assert isinstance(error, InvalidRequest)
    assert error.param == param
    assert param in error.message


@pytest.mark.parametrize("stop", ["", [""], ["", "E"], 5, [1], {}, ["x"] * 200, ["x" * 1025], True])
def test_stp_09_refused(card: ModelCard, stop: object) -> None:
    error = refused_chat(card, HI | {"stop": stop})
    assert error.status == 400
    assert error.param is not None
    assert error.param.startswith("stop")


@pytest.mark.parametrize(
    ("stop", "strings"),
    [
        (None, ()),
        ([], ()),
        ("E", ("E",)),
        (["E", "F"], ("E", "F")),
        (["x"] * 16, ("x",) * 16),
    ],
)
def test_stp_09_accepted(card: ModelCard, stop: object, strings: tuple[str, ...]) -> None:
    request, _ = parse_chat(orjson.dumps(HI | {"stop": stop}), card)
    assert request.stop == strings


def test_stp_09_include_stop_is_false_where_it_is_null(card: ModelCard) -> None:
    body = HI | {"stop": "E", "include_stop_str_in_output": None}
    request, _ = parse_chat(orjson.dumps(body), card)
    assert request.include_stop is False


PROMPT_REFUSALS: list[tuple[object, str]] = [
    (None, "prompt"),
    ("", "prompt"),
    ([], "prompt"),
    ([[]], "prompt[0]"),
    ({}, "prompt"),
    (5, "prompt"),
    ([1, 260], "prompt[1]"),
    ([1, -1], "prompt[1]"),
    ([1, True], "prompt[1]"),
    ([1, 2.0], "prompt[1]"),
    ([[1, 999]], "prompt[0][1]"),
    (["a", 1], "prompt[1]"),
    ([None], "prompt[0]"),
]


@pytest.mark.parametrize(("prompt", "param"), PROMPT_REFUSALS)
def test_wrong_prompt(card: ModelCard, prompt: object, param: str) -> None:
    # The tokenizer would put its BOS before an empty text.
    error = refused_completion(card, {"prompt": prompt, "add_special_tokens": False})
    assert error.status == 400
    assert error.param == param


def test_pd_15_more_answers_than_are_allowed(card: ModelCard) -> None:
    error = refused_completion(card, {"prompt": ["a"] * 43, "n": 3})
    assert isinstance(error, InvalidRequest)
    assert error.param == "prompt"
    assert "43" in error.message
    assert "129" in error.message


@pytest.mark.parametrize("n", [0, -1, 129, 1.5, "2", True])
def test_pd_15_n_of_another_kind(card: ModelCard, n: object) -> None:
    assert refused_chat(card, HI | {"n": n}).param == "n"
    assert refused_completion(card, A | {"n": n}).param == "n"


def test_pd_15_best_of_has_one_candidate(card: ModelCard) -> None:
    request, _ = parse_completion(orjson.dumps(A | {"best_of": 2}), card)
    assert request.prompt_ids == (256, 97)


def test_image_part_is_refused_by_its_own_name(card: ModelCard) -> None:
    parts: list[dict[str, object]] = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {}},
    ]
    error = refused_chat(card, {"messages": [{"role": "user", "content": parts}]})
    assert isinstance(error, UnsupportedParameter)
    assert error.param == "messages[0].content[1].type"
    assert '"image_url"' in error.message


@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
def test_unknown_model_is_404(card: ModelCard, parse: Any) -> None:
    with pytest.raises(ModelNotFound) as caught:
        parse(orjson.dumps(HI | A | {"model": "gpt-9"}), card)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert caught.value.param == "model"
    assert '"gpt-9"' in caught.value.message
    assert "byte, byte-alias" in caught.value.message


def test_a_long_value_is_cut_in_the_message(card: ModelCard) -> None:
    error = refused_chat(card, HI | {"max_tokens": "9" * 100_000})
    assert len(error.message) < 200
    assert "100000 characters" in error.message


def test_chat_with_a_base_model(card: ModelCard) -> None:
    error = refused_chat(replace(card, chat_template=None), HI)
    assert error.param == "messages"
    assert "/v1/completions" in error.message


def test_prompt_longer_than_the_context(card: ModelCard) -> None:
    error = refused_completion(card, {"prompt": "x" * 1500})
    assert isinstance(error, ContextLengthExceeded)
    assert error.param == "prompt"
    assert "1501" in error.message
    assert "1000" in error.message


def test_prompt_and_max_tokens_longer_than_the_context(card: ModelCard) -> None:
    error = refused_completion(card, {"prompt": "x" * 99, "max_tokens": 901})
    assert isinstance(error, ContextLengthExceeded)
    assert error.code == "context_length_exceeded"
    assert error.param == "max_tokens"
    for number in ("100", "901", "1001", "1000", "900"):
        assert number in error.message


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_mask_of_the_whole_vocabulary_is_refused(card: ModelCard, ignore_eos: bool) -> None:
    every = [token for token in range(card.vocab_size) if ignore_eos or token not in card.eos_ids]
    fields = A | {"stop_token_ids": every, "ignore_eos": ignore_eos}
    assert refused_completion(card, fields | {"min_tokens": 1}).param == "stop_token_ids"
    parse_completion(orjson.dumps(fields), card)
    parse_completion(orjson.dumps(fields | {"min_tokens": 1, "stop_token_ids": every[1:]}), card)


REFUSED = [
    (endpoint, parameter.name)
    for parameter in PARAMETERS
    if parameter.answer == "refused"
    for endpoint in parameter.endpoints
]


@pytest.mark.parametrize(("endpoint", "name"), REFUSED)
def test_refused_parameter_is_named(card: ModelCard, endpoint: str, name: str) -> None:
    refused = refused_chat if endpoint == "chat" else refused_completion
    error = refused(card, (HI if endpoint == "chat" else A) | {name: [3]})
    assert isinstance(error, UnsupportedParameter)
    assert (error.code, error.param) == ("unsupported_parameter", name)


SAMPLING_REFUSALS: list[tuple[dict[str, object], str]] = [
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e308}, "repetition_penalty"),
    ({"logit_bias": {"foo": 1}}, "logit_bias.foo"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"260": 1}}, "logit_bias.260"),
    ({"logit_bias": {"1": "much"}}, "logit_bias.1"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema",
    ),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"json": "["}}, "structured_outputs.json"),
    ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag"),
    (
        {
            "response_format": {"type": "json_object"},
            "structured_outputs": {"regex": "a"},
        },
        "structured_outputs",
    ),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), SAMPLING_REFUSALS, ids=str)
def test_wrong_sampling(card: ModelCard, fields: dict[str, object], param: str) -> None:
    able = replace(card, capabilities=ENGINE_CAPABILITIES)
    for error in (refused_chat(able, HI | fields), refused_completion(able, A | fields)):
        assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize("levels", [126, 400])
def test_a_schema_deeper_than_can_be_written(card: ModelCard, levels: int) -> None:
    """JSON may come deeper than it can be written again; each level is an object and a list."""
    able = replace(card, capabilities=ENGINE_CAPABILITIES)
    deep = b'{"anyOf":[' * levels + b"{}" + b"]}" * levels
    schema = b'{"type":"json_schema","json_schema":{"name":"a","schema":' + deep + b"}}"
    for name, value, param in (
        (b"response_format", schema, "response_format.json_schema.schema"),
        (b"structured_outputs", b'{"json":' + deep + b"}", "structured_outputs.json"),
    ):
        body = orjson.dumps(HI)[:-1] + b',"' + name + b'":' + value + b"}"
        error = refused_chat(able, body)
        assert (error.status, error.param) == (400, param)
        assert "deep" in error.message


def test_top_logprobs_need_logprobs(card: ModelCard) -> None:
    able = replace(card, capabilities=ENGINE_CAPABILITIES)
    assert refused_chat(able, HI | {"top_logprobs": 2}).param == "top_logprobs"
    assert refused_chat(able, HI | {"logprobs": True, "top_logprobs": 21}).param == "top_logprobs"
    assert refused_completion(able, A | {"logprobs": 21}).param == "logprobs"
    blind = replace(able, capabilities=ENGINE_CAPABILITIES - {"prompt_logprobs"})
    assert refused_completion(blind, A | {"logprobs": 1, "echo": True}).param == "echo"
    streamed = {"prompt_logprobs": 1, "stream": True}
    assert refused_completion(able, A | streamed).param == "prompt_logprobs"
    assert refused_chat(able, HI | {"prompt_logprobs": 21}).param == "prompt_logprobs"


CAPABILITY_FIELDS: list[tuple[dict[str, object], str]] = [
    ({"min_p": 0.1}, "min_p"),
    ({"seed": 1}, "seed"),
    ({"presence_penalty": 0.1}, "presence_penalty"),
    ({"frequency_penalty": 0.1}, "frequency_penalty"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
]


@pytest.mark.parametrize(("fields", "param"), CAPABILITY_FIELDS, ids=str)
def test_what_the_engine_cannot_do_is_refused_by_name(
    card: ModelCard, fields: dict[str, object], param: str
) -> None:
    unable = replace(card, capabilities=frozenset())
    for error in (refused_chat(unable, HI | fields), refused_completion(unable, A | fields)):
        assert isinstance(error, UnsupportedParameter)
        assert error.param == param
    able = replace(card, capabilities=ENGINE_CAPABILITIES)
    request, _ = parse_completion(orjson.dumps(A | fields), able)
    assert len(request.sampling.needs()) >= 1
