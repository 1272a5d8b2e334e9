"""Lists of ids: what is accepted without being looked at closely is what would be, and no more."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from tilert_stream.errors import InvalidRequest
from tilert_stream.openai.completions import parse_completion
from tilert_stream.openai.ids import Ids, check_ids
from tilert_stream.openai.validation import WireModel, validate

if TYPE_CHECKING:
    from tilert_stream.model.card import ModelCard

LONG = [7] * 5000


class Quick(WireModel):
    ids: Ids
    lists: list[Ids]


class Plain(BaseModel):
    """What pydantic makes of the same, id by id."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")
    ids: list[int] = Field(fail_fast=True)
    lists: list[list[int]]


def told(model: type[Any], body: dict[str, object]) -> object:
    try:
        value = validate(model, body)
    except InvalidRequest as error:
        return error.message, error.param
    return value.ids, value.lists


JSON = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.none(),
    st.lists(st.integers(0, 9), max_size=2),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
)


@given(st.one_of(st.lists(st.integers(0, 2**64 - 1)), st.lists(JSON), JSON))
def test_the_verdict_is_pydantics_own(value: object) -> None:
    flat: dict[str, object] = {"ids": value, "lists": []}
    assert told(Quick, flat) == told(Plain, flat)
    nested: dict[str, object] = {"ids": [], "lists": [[1], value]}
    assert told(Quick, nested) == told(Plain, nested)


@given(
    st.lists(
        st.one_of(
            st.integers(-5, 300),
            st.sampled_from([0xD7FF, 0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xE000, 0x10FFFF, 0x110000]),
            st.integers(-(2**70), 2**70),
        )
    ),
    st.one_of(
        st.integers(1, 300), st.sampled_from([0xD801, 0xE000, 151_552, 0x10FFFF, 0x110000, 2**31])
    ),
)
def test_ids_are_of_the_vocabulary_or_the_first_is_named(ids: list[int], size: int) -> None:
    wrong = [place for place, token in enumerate(ids) if not 0 <= token < size]
    if not wrong:
        check_ids(ids, "prompt", size)
        return
    with pytest.raises(InvalidRequest) as caught:
        check_ids(ids, "prompt", size)
    assert caught.value.param == f"prompt[{wrong[0]}]"
    assert f"is {ids[wrong[0]]};" in caught.value.message


@pytest.mark.parametrize("size", [*range(1, 130), sys.maxunicode, sys.maxunicode + 1])
def test_the_first_id_beyond_any_vocabulary(size: int) -> None:
    check_ids([0, size - 1], "prompt", size)
    with pytest.raises(InvalidRequest, match=rf"prompt\[1\] is {size};"):
        check_ids([0, size], "prompt", size)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("-1", "prompt[5000] is -1; a token id must be at least 0 and below the vocabulary's size"),
        ("-0", None),
        (
            "999999",
            "prompt[5000] is 999999; a token id must be at least 0 and below the",
        ),
        ("true", "prompt[5000] is true; it must be an integer"),
        ("7.0", "prompt[5000] is 7.0; it must be an integer"),
        ("7e0", "prompt[5000] is 7.0; it must be an integer"),
        ("null", "prompt[5000] is null; it must be an integer"),
        ('"7"', 'prompt[5000] is "7"; it must be an integer'),
        ("[7]", "prompt[5000] is a list of length 1; it must be an integer"),
        ("{}", "prompt[5000] is an object of size 0; it must be an integer"),
        (str(2**63), f"prompt[5000] is {2**63}; a token id must be at least 0 and below"),
        (str(2**64), "prompt[5000] is 1.8446744073709552e+19; it must be an integer"),
    ],
)
def test_one_bad_id_behind_many(card: ModelCard, last: str, message: str | None) -> None:
    body = f'{{"prompt": [{json.dumps(LONG)[1:-1]}, {last}], "max_tokens": 1}}'.encode()
    if message is None:
        assert orjson.loads(body)["prompt"][-1] == 0
        with pytest.raises(InvalidRequest, match="5001 tokens"):
            parse_completion(body, card)
        return
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(body, card)
    assert caught.value.message.startswith(message)
    assert caught.value.param == "prompt[5000]"
