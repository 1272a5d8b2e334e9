"""What prefill is asked, and what is read in its answer."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.cluster.prefill_answer import PrefillAnswer, read_prefill_answer
from tilert_stream.cluster.prefill_call import prefill_body, request_fields
from tilert_stream.events import (
    GenerateRequest,
    Limits,
    PromptUsage,
    Sampling,
    TokenBatch,
    TokenLogprob,
)
from tilert_stream.http.client import UpstreamError, UpstreamInvalid
from tilert_stream.openai.grammar import WHITESPACE, schema_grammar

KV = {"tilert_host": "d", "tilert_ctrl_port": 5556}
OURS = {
    "model": "glm5",
    "max_tokens": 1,
    "stream": False,
    "request_id": "feed",
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "kv_transfer_params": KV,
}


def body_of(fields: dict[str, Any]) -> dict[str, object]:
    before = orjson.dumps(fields)
    body = prefill_body(fields, request_id="feed", model="glm5", kv_transfer_params=KV)
    assert orjson.dumps(fields) == before, "the client's own values are kept for decode"
    assert set(OURS) <= set(body)
    assert {name: body[name] for name in OURS} == OURS
    return {name: value for name, value in body.items() if name not in OURS}


BENCH_CHAT: dict[str, Any] = {
    "model": "served",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "max_completion_tokens": 3000,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.0,
    "ignore_eos": True,
}
BENCH_COMPLETION: dict[str, Any] = {
    "model": "served",
    "prompt": "hi",
    "repetition_penalty": 1.0,
    "max_tokens": 128,
    "logprobs": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.0,
}


def test_pd_01_the_bodies_of_a_benchmark() -> None:
    assert body_of(BENCH_CHAT) == {
        "messages": BENCH_CHAT["messages"],
        "temperature": 0.0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 1,
    }
    assert body_of(BENCH_COMPLETION) == {
        "prompt": "hi",
        "repetition_penalty": 1.0,
        "temperature": 0.0,
        "logprobs": 1,
    }


@pytest.mark.parametrize(
    "lengths",
    [
        {"max_completion_tokens": 3000},
        {"max_tokens": 50},
        {"max_tokens": 50, "max_completion_tokens": 3000},
        {},
    ],
)
def test_pd_02_one_length_field(lengths: dict[str, int]) -> None:
    body = prefill_body(
        {"messages": [], **lengths}, request_id="a", model="m", kv_transfer_params=None
    )
    assert body["max_tokens"] == 1
    assert "max_completion_tokens" not in body
    assert "kv_transfer_params" not in body


@pytest.mark.parametrize(
    ("asked", "sent"),
    [(100, 1), (1, 1), (0, None), (None, None), (-3, None), (True, None), ("5", None)],
)
def test_pd_03_min_tokens(asked: object, sent: int | None) -> None:
    assert body_of({"prompt": "", "min_tokens": asked}).get("min_tokens") == sent


@pytest.mark.parametrize("value", [True, False])
def test_pd_03_ignore_eos_is_forwarded(value: bool) -> None:
    assert body_of({"prompt": "", "ignore_eos": value})["ignore_eos"] is value


@pytest.mark.parametrize("name", ["stop", "n", "echo", "best_of", "stream_options"])
def test_what_one_token_has_no_use_for(name: str) -> None:
    assert name not in body_of({"prompt": "", name: 2})


@pytest.mark.parametrize(("asked", "sent"), [(None, 1), (0, 1), (5, 5), (False, 1)])
def test_the_first_token_is_read_in_its_logprob(asked: object, sent: int) -> None:
    assert body_of({"prompt": "", "logprobs": asked})["logprobs"] == sent
    chat = body_of({"messages": [], "logprobs": False, "top_logprobs": asked})
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, sent)


def test_a_request_as_the_fields_of_a_completion() -> None:
    limits = Limits(9, min_tokens=4, eos_ids=frozenset({2}), stop_ids=frozenset({8, 7}))
    request = GenerateRequest("feed", (1, 2), limits, Sampling(0.5, 0.9, 40, 0.1, 11), ("x",))
    assert body_of(request_fields(request)) == {
        "prompt": (1, 2),
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 11,
        "min_tokens": 1,
        "stop_token_ids": [7, 8],
        "ignore_eos": False,
        "logprobs": 1,
    }
    ignoring = GenerateRequest("feed", (1,), Limits(9))
    assert body_of(request_fields(ignoring))["ignore_eos"] is True


def test_what_few_requests_ask_for_is_named_only_where_they_do() -> None:
    sampling = Sampling(
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        prompt_tokens=frozenset({1}),
        logit_bias=((7, 1.5), (8, -100.0)),
        logprobs=0,
        grammar=schema_grammar({"type": "object"}),
    )
    body = body_of(request_fields(GenerateRequest("feed", (1,), Limits(9), sampling)))
    plain = body_of(request_fields(GenerateRequest("feed", (1,), Limits(9))))
    assert {name: value for name, value in body.items() if name not in plain} == {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"7": 1.5, "8": -100.0},
        "wants_logprobs": True,
        "structured_outputs": {"json": {"x-guidance": WHITESPACE, "type": "object"}},
    }
    assert body["logprobs"] == 1, "0 would not tell the id of the first token"


# --- answers -----------------------------------------------------------------------------------


def chat(**choice: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-feed",
        "choices": [{"index": 0, "finish_reason": "length", **choice}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5},
    }


def read(answer: object) -> PrefillAnswer:
    body = answer if isinstance(answer, bytes) else orjson.dumps(answer)
    return read_prefill_answer(body, prompt_ids=(1, 2, 3, 4), label="prefill")


CHAT_LOGPROBS: dict[str, Any] = {
    "content": [{"token": "token_id:504", "logprob": -0.1, "top_logprobs": []}]
}
COMPLETION_LOGPROBS = {"tokens": ["token_id:504"], "token_logprobs": [-0.1], "text_offset": [0]}


@pytest.mark.parametrize(
    "choice",
    [
        {"logprobs": CHAT_LOGPROBS},
        {"logprobs": COMPLETION_LOGPROBS},
        {"logprobs": None, "token_ids": [504]},
        {"logprobs": CHAT_LOGPROBS, "token_ids": [504]},
        {"logprobs": {"content": [{"token": "Paris"}]}, "token_ids": [504]},
        {"logprobs": CHAT_LOGPROBS, "finish_reason": "stop"},
        {"logprobs": CHAT_LOGPROBS, "finish_reason": None},
    ],
)
def test_the_first_token(choice: dict[str, Any]) -> None:
    assert read(chat(**choice)) == PrefillAnswer(TokenBatch((504,)), PromptUsage(4), None)


TOLD = {
    "tokens": ["token_id:504"],
    "token_logprobs": [-0.5],
    "top_logprobs": [{"token_id:504": -0.5, "token_id:7": -0.25, "token_id:9": -3}],
}


@pytest.mark.parametrize(("count", "top"), [(0, ()), (1, ((7, -0.25),)), (5, None)])
def test_pd_16_the_first_tokens_logprob(
    count: int, top: tuple[tuple[int, float], ...] | None
) -> None:
    body = orjson.dumps(chat(logprobs=TOLD))
    answer = read_prefill_answer(body, prompt_ids=(1, 2, 3, 4), label="prefill", logprobs=count)
    top = ((7, -0.25), (504, -0.5), (9, -3.0)) if top is None else top
    assert answer.first == TokenBatch((504,), (TokenLogprob(504, -0.5, top),))
    assert read(chat(logprobs=TOLD)).first == TokenBatch((504,)), "nobody has asked"


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        TOLD | {"token_logprobs": []},
        TOLD | {"token_logprobs": [None]},
        TOLD | {"top_logprobs": [None]},
        TOLD | {"top_logprobs": [{"Paris": -0.5}]},
        TOLD | {"top_logprobs": [{"token_id:7": "x"}]},
    ],
)
def test_pd_16_no_logprob_is_invented(logprobs: object) -> None:
    body = orjson.dumps(chat(logprobs=logprobs, token_ids=[504]))
    with pytest.raises(UpstreamInvalid, match="logprobs"):
        read_prefill_answer(body, prompt_ids=(1, 2, 3, 4), label="prefill", logprobs=1)


OF_PROMPT: list[Any] = [
    None,
    {"2": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}},
    {"3": {"logprob": -3.0}, "9": {"logprob": -0.25}, "8": {"logprob": -0.5}},
    {"4": {"logprob": -9999.0}, "7": {"logprob": -1}},
]


def read_of_prompt(given: object) -> PrefillAnswer:
    body = orjson.dumps(chat(token_ids=[504], prompt_logprobs=given))
    return read_prefill_answer(body, prompt_ids=(1, 2, 3, 4), label="prefill", prompt_logprobs=1)


def test_the_prompts_logprobs() -> None:
    assert read_of_prompt(OF_PROMPT).usage == PromptUsage(
        4,
        logprobs=(
            TokenLogprob(2, -0.5, ((2, -0.5),)),
            TokenLogprob(3, -3.0, ((9, -0.25),)),
            TokenLogprob(4, -9999.0, ((7, -1.0),)),
        ),
    )


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        OF_PROMPT[:3],
        [*OF_PROMPT[:3], None],
        [*OF_PROMPT[:3], {}],
        [*OF_PROMPT[:3], {"5": {"logprob": -1}}],
        [*OF_PROMPT[:3], {"4": {"logprob": None}}],
        [*OF_PROMPT[:3], {"4": -1}],
        [*OF_PROMPT[:3], {"four": {"logprob": -1}}],
        [*OF_PROMPT[:3], {"9" * 5000: {"logprob": -1}}],
    ],
)
def test_the_prompts_logprobs_are_not_invented(given: object) -> None:
    with pytest.raises(UpstreamInvalid):
        read_of_prompt(given)


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens": None}, None),
        ({"prompt_tokens": 4, "prompt_tokens_details": None}, None),
        ({"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}, 3),
        ({"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8192}}, 4),
        ({"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": -1}}, 0),
    ],
)
def test_met_09_met_11_the_prompts_tokens(usage: object, cached: int | None) -> None:
    answer = chat(token_ids=[1]) | {"usage": usage}
    assert read(answer).usage == PromptUsage(4, cached)


def test_met_09_usage_left_out() -> None:
    answer = chat(token_ids=[1])
    del answer["usage"]
    assert read(answer).usage == PromptUsage(4)


def test_what_the_connector_says_is_handed_on() -> None:
    answer = chat(token_ids=[1]) | {"kv_transfer_params": {"a": 1}}
    assert read(answer).kv_transfer_params == {"a": 1}
    assert read(answer | {"kv_transfer_params": None}).kv_transfer_params is None


SSE = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(b"", "nothing came", id="empty"),
        pytest.param(b"<html>", "6 bytes of something else", id="html"),
        pytest.param(orjson.dumps(chat(token_ids=[1]))[:-9], "did not answer in JSON", id="cut"),
        pytest.param([], "the answer is a list; it must be an object", id="list"),
        pytest.param({}, "choices is null; it must be a list", id="no choices"),
        pytest.param({"choices": []}, "choices has 0 items", id="empty choices"),
        pytest.param({"choices": [3]}, "choices\\[0\\] is a number", id="odd choice"),
        pytest.param(chat(), "does not say the first token's id", id="no token"),
        pytest.param(chat(logprobs=None), "--return-tokens-as-token-ids", id="null logprobs"),
        pytest.param(chat(logprobs={"tokens": ["Paris"]}), "'token_id:N'", id="text"),
        pytest.param(chat(logprobs={"tokens": ["token_id:-1"]}), "'token_id:N'", id="negative"),
        pytest.param(chat(logprobs={"tokens": []}), "'token_id:N'", id="no tokens"),
        pytest.param(chat(logprobs={"content": [7]}), "'token_id:N'", id="odd content"),
        pytest.param(chat(token_ids=[1, 2]), "has 2 ids; one was asked for", id="two tokens"),
        pytest.param(chat(token_ids=[]), "has 0 ids; one was asked for", id="no ids"),
        pytest.param(chat(token_ids=["1"]), "is a string; it must be a token id", id="string id"),
        pytest.param(chat(token_ids=[True]), "must be a token id", id="bool id"),
        pytest.param(chat(token_ids=[2**31]), "must be a token id", id="big id"),
        pytest.param(chat(token_ids=[2**70]), "did not answer in JSON|token id", id="huge id"),
        pytest.param(
            chat(token_ids=[1], logprobs=CHAT_LOGPROBS), "says both 1 and 504", id="two firsts"
        ),
        pytest.param(
            chat(token_ids=[1]) | {"usage": {"prompt_tokens": 5}},
            "about a prompt of 5 tokens; the prompt has 4",
            id="another prompt",
        ),
        pytest.param(chat(token_ids=[1]) | {"kv_transfer_params": 3}, "must be an object", id="kv"),
    ],
)
def test_pd_11_an_answer_that_cannot_be_used(answer: Any, why: str) -> None:
    # The standard library's JSON has no largest integer.
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    with pytest.raises(UpstreamInvalid, match=why) as caught:
        read(body)
    assert (caught.value.status, caught.value.code) == (502, "upstream_invalid")


def test_pd_04_an_event_stream_although_none_was_asked_for() -> None:
    with pytest.raises(UpstreamInvalid, match="it sent an event stream, although stream is false"):
        read(SSE)


@pytest.mark.parametrize("reason", ["abort", "error", "cancelled"])
def test_pd_14_an_aborted_prefill_is_no_answer(reason: str) -> None:
    with pytest.raises(UpstreamError, match=f"gave the request up .*{reason}") as caught:
        read(chat(token_ids=[1], finish_reason=reason))
    assert caught.value.status == 502


JSON: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**33) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "usage", "token_ids", "logprobs", "content", "tokens", "token",
             "finish_reason", "prompt_tokens", "prompt_tokens_details", "cached_tokens",
             "kv_transfer_params"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(answer=JSON, choice=JSON)
def test_pd_11_any_json_is_read_or_refused(answer: object, choice: object) -> None:
    candidates: list[object] = [answer, {"choices": [choice], "usage": answer}]
    for candidate in candidates:
        with suppress(UpstreamError):
            assert read(orjson.dumps(candidate)).usage.prompt_tokens == 4


@given(body=st.binary(max_size=60))
def test_pd_11_any_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(UpstreamInvalid):
        read(body)
