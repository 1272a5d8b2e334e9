"""Random bodies, random fields, broken bytes: a request or a 4xx comes out, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilert_stream.errors import TilertStreamError
from tilert_stream.openai.chat import ChatRequest, parse_chat
from tilert_stream.openai.completions import CompletionRequest, parse_completion
from tilert_stream.openai.parameters import PARAMETERS

if TYPE_CHECKING:
    from tilert_stream.model.card import ModelCard

VALID_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "prompt": "a"}

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
NAMES = sorted(
    {parameter.name for parameter in PARAMETERS}
    | set(ChatRequest.model_fields)
    | set(CompletionRequest.model_fields)
)
ROLES = st.sampled_from(["system", "user", "assistant", "developer", "tool"])
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": st.text()})
)
MESSAGES = st.lists(
    JSON | st.fixed_dictionaries({"role": ROLES, "content": st.text() | PARTS | JSON}), max_size=3
)
FIELDS: st.SearchStrategy[dict[str, object]] = st.dictionaries(
    st.sampled_from(NAMES), JSON, max_size=4
)
VALID: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {}, optional={"messages": MESSAGES, "stream": st.just(value=True)}
)


def _body(valid: dict[str, object], mutation: dict[str, object]) -> dict[str, object]:
    return VALID_BODY | valid | mutation


BODIES = st.builds(_body, VALID, FIELDS)


def answer(parse: Any, body: bytes, card: ModelCard) -> None:
    refusal: TilertStreamError | None = None
    try:
        request, envelope = parse(body, card)
    except TilertStreamError as error:
        refusal = error
    else:
        assert 1 <= request.limits.max_tokens <= card.max_seq_len - len(request.prompt_ids)
        assert 0 <= request.limits.min_tokens <= request.limits.max_tokens
        assert all(request.stop)
        assert envelope.model in card.names
        assert request.id in envelope.id
    assert refusal is None or 400 <= refusal.status < 500
    assert refusal is None or len(refusal.message) < 1000


@settings(deadline=None, max_examples=400)
@given(body=BODIES)
def test_mutated_bodies(card: ModelCard, body: dict[str, object]) -> None:
    encoded = orjson.dumps(body)
    answer(parse_chat, encoded, card)
    answer(parse_completion, encoded, card)


@settings(deadline=None, max_examples=200)
@given(body=JSON.map(orjson.dumps) | st.binary(max_size=64))
def test_random_bodies(card: ModelCard, body: bytes) -> None:
    answer(parse_chat, body, card)
    answer(parse_completion, body, card)


@settings(deadline=None, max_examples=200)
@given(body=BODIES.map(orjson.dumps), place=st.integers(0, 4000), byte=st.integers(0, 255))
def test_one_broken_byte(card: ModelCard, body: bytes, place: int, byte: int) -> None:
    broken = bytearray(body)
    broken[place % len(broken)] = byte
    answer(parse_chat, bytes(broken), card)


@pytest.mark.parametrize("name", NAMES)
def test_nesting_that_json_allows(card: ModelCard, name: str) -> None:
    deep = b"[" * 1000 + b"]" * 1000
    base = orjson.dumps(VALID_BODY)[:-1]
    for parse in (parse_chat, parse_completion):
        answer(parse, base + b',"' + name.encode() + b'":' + deep + b"}", card)
