"""What a valid body becomes."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tilert_stream.events import Limits, Sampling
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.openai.chat import ChatRequest, parse_chat
from tilert_stream.openai.completions import CompletionRequest, parse_completion
from tilert_stream.openai.parameters import PARAMETERS

if TYPE_CHECKING:
    from tilert_stream.model.card import ModelCard
    from tilert_stream.openai.build import Parsed

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
A: dict[str, Any] = {"prompt": "a"}


def chat(card: ModelCard, **fields: object) -> Parsed:
    return parse_chat(orjson.dumps(HI | fields), card)


def completion(card: ModelCard, **fields: object) -> Parsed:
    return parse_completion(orjson.dumps(A | fields), card)


def test_chat_defaults(card: ModelCard) -> None:
    request, envelope = chat(card)
    assert bytes(request.prompt_ids) == b"<|user|>hi\n<|assistant|>"
    assert request.limits == Limits(
        max_tokens=1000 - len(request.prompt_ids), eos_ids=frozenset({257})
    )
    assert request.sampling == card.default_sampling
    assert request.stop == ()
    assert (request.include_stop, request.skip_special_tokens) == (False, True)
    assert envelope.kind == "chat"
    assert envelope.id == f"chatcmpl-{request.id}"
    assert envelope.model == "byte"
    assert (envelope.stream, envelope.include_usage, envelope.continuous_usage) == (False,) * 3


def test_request_ids_are_hex_and_unique(card: ModelCard) -> None:
    ids = {chat(card).request.id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(id_) == 32 and int(id_, 16) >= 0 for id_ in ids)


def test_completion_defaults(card: ModelCard) -> None:
    request, envelope = completion(card)
    assert request.prompt_ids == (256, 97)
    assert request.limits.max_tokens == 16
    assert envelope.kind == "completion"
    assert envelope.id == f"cmpl-{request.id}"


def test_default_max_tokens_is_cut_to_the_context(card: ModelCard) -> None:
    assert completion(card, prompt="x" * 990).request.limits.max_tokens == 9


def test_given_max_tokens_may_fill_the_context(card: ModelCard) -> None:
    assert completion(card, prompt="x" * 99, max_tokens=900).request.limits.max_tokens == 900


def test_max_completion_tokens_wins(card: ModelCard) -> None:
    both = chat(card, max_completion_tokens=7, max_tokens=9)
    assert both.request.limits.max_tokens == 7
    null = chat(card, max_completion_tokens=None, max_tokens=9)
    assert null.request.limits.max_tokens == 9


def test_null_is_absent_everywhere(card: ModelCard) -> None:
    nulls = {
        parameter.name: None
        for parameter in PARAMETERS
        if parameter.name not in {"messages", "prompt"}
    }
    for parse in (chat, completion):
        absent, null = parse(card), parse(card, **nulls)
        assert replace(null.request, id=absent.request.id) == absent.request
        assert null.envelope.model == absent.envelope.model
        assert null.envelope.stream is False


def test_served_fields(card: ModelCard) -> None:
    request, envelope = chat(
        card,
        model="byte-alias",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        max_tokens=50,
        min_tokens=2,
        stop=["E"],
        stop_token_ids=[10, 11],
        include_stop_str_in_output=True,
        ignore_eos=True,
        skip_special_tokens=False,
        temperature=1,
        top_p=0.5,
        top_k=5,
        min_p=0.25,
        seed=-(2**63),
    )
    assert request.limits == Limits(
        max_tokens=50, min_tokens=2, eos_ids=frozenset(), stop_ids=frozenset({10, 11})
    )
    assert request.sampling == Sampling(
        temperature=1.0, top_p=0.5, top_k=5, min_p=0.25, seed=-(2**63)
    )
    assert request.stop == ("E",)
    assert (request.include_stop, request.skip_special_tokens) == (True, False)
    assert envelope.model == "byte-alias"
    assert (envelope.stream, envelope.include_usage, envelope.continuous_usage) == (True,) * 3


@pytest.mark.parametrize(("asked", "got"), [(-1, 0), (0, 0), (1, 1), (259, 259), (260, 0)])
def test_top_k_that_is_no_limit(card: ModelCard, asked: int, got: int) -> None:
    assert chat(card, top_k=asked).request.sampling.top_k == got


@pytest.mark.parametrize(("asked", "got"), [(0, 0), (1e-300, 0.01), (0.01, 0.01), (1.5, 1.5)])
def test_temperature(card: ModelCard, asked: float, got: float) -> None:
    assert chat(card, temperature=asked).request.sampling.temperature == got


def test_continuous_usage_needs_include_usage(card: ModelCard) -> None:
    envelope = chat(card, stream=True, stream_options={"continuous_usage_stats": True}).envelope
    assert (envelope.include_usage, envelope.continuous_usage) == (False, False)


def test_empty_stream_options_ask_for_nothing(card: ModelCard) -> None:
    assert chat(card, stream_options={}).envelope.include_usage is False


def test_the_last_of_two_keys_counts(card: ModelCard) -> None:
    body = orjson.dumps(HI)[:-1] + b',"max_tokens":5,"max_tokens":6}'
    assert parse_chat(body, card).request.limits.max_tokens == 6


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]]])
def test_token_ids_are_taken_as_they_are(card: ModelCard, prompt: object) -> None:
    assert completion(card, prompt=prompt).request.prompt_ids == (104, 105)


def test_a_list_of_one_text(card: ModelCard) -> None:
    assert completion(card, prompt=["a"]).request.prompt_ids == (256, 97)


def test_add_special_tokens(card: ModelCard) -> None:
    assert completion(card, add_special_tokens=False).request.prompt_ids == (97,)
    assert chat(card, add_special_tokens=True).request.prompt_ids[0] == 256


def test_content_parts_are_joined(card: ModelCard) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    request, _ = chat(card, messages=[{"role": "user", "content": parts}])
    assert bytes(request.prompt_ids) == b"<|user|>one\ntwo\n<|assistant|>"


def test_an_assistant_turn_may_be_empty(card: ModelCard) -> None:
    empty: dict[str, object] = {"role": "assistant", "content": None, "tool_calls": []}
    messages = [empty, *HI["messages"]]
    request, _ = chat(card, messages=messages)
    assert bytes(request.prompt_ids) == b"<|assistant|>\n<|user|>hi\n<|assistant|>"


def test_further_members_reach_the_template(card: ModelCard) -> None:
    source = "{{ messages[0].name }}:{{ 'mood' in messages[0] }}:{{ tone }}:{{ reasoning_effort }}"
    request, _ = chat(
        replace(card, chat_template=ChatTemplate(source)),
        messages=[{"role": "user", "content": "hi", "name": "Ann", "mood": None}],
        chat_template_kwargs={"tone": "dry", "self": 1},
        reasoning_effort="low",
    )
    assert bytes(request.prompt_ids) == b"Ann:False:dry:low"


def test_add_generation_prompt(card: ModelCard) -> None:
    request, _ = chat(card, add_generation_prompt=False)
    assert bytes(request.prompt_ids) == b"<|user|>hi\n"


def test_inert_and_no_effect_values_are_accepted(card: ModelCard) -> None:
    for parse, endpoint in ((chat, "chat"), (completion, "completion")):
        for parameter in PARAMETERS:
            if endpoint not in parameter.endpoints or parameter.answer == "served":
                continue
            values = parameter.no_effect if parameter.answer == "refused" else ("x", 5, {"a": 1})
            for value in values:
                request, _ = parse(card, **{parameter.name: value})
                assert request.sampling == card.default_sampling


def test_zero_is_no_penalty_in_either_spelling(card: ModelCard) -> None:
    body = b'"presence_penalty":0.0,"frequency_penalty":-0.0,"repetition_penalty":1.0,"n":1}'
    assert parse_chat(orjson.dumps(HI)[:-1] + b"," + body, card).request.stop == ()


def test_unknown_fields_are_one_line_of_the_debug_log(
    card: ModelCard, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "tilert_stream.openai"):
        chat(card, **{"zeta": 1, "user": "u", "new\nline": 2})
    assert [record.getMessage() for record in caplog.records] == [
        '2 unknown fields ignored: "zeta", "new\\nline"'
    ]


def test_declarations_and_models_agree() -> None:
    served = {
        endpoint: {
            parameter.name
            for parameter in PARAMETERS
            if parameter.answer == "served" and endpoint in parameter.endpoints
        }
        for endpoint in ("chat", "completion")
    }
    assert set(ChatRequest.model_fields) == served["chat"]
    assert set(CompletionRequest.model_fields) == served["completion"]


def test_each_field_is_declared_once_an_endpoint() -> None:
    keys = [(endpoint, each.name) for each in PARAMETERS for endpoint in each.endpoints]
    assert len(keys) == len(set(keys))
    assert all(each.note for each in PARAMETERS)
