from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.errors import (
    ControlError,
    MalformedMessage,
)
from tilert_transports.control.fields import Fields
from tilert_transports.control.frames import JSONObject
from tilert_transports.control.handshake import DecodeHandshake, PrefillHandshake
from tilert_transports.control.layout import Difference

from .nodes import DECODE, KEY, LAYOUT, PREFILL


def opened(
    key: ClusterKey | None = None,
) -> tuple[DecodeHandshake, PrefillHandshake, JSONObject]:
    """Both sides, and the prefill node's HELLO on its way."""
    decode, prefill = DecodeHandshake(DECODE, key), PrefillHandshake(PREFILL, key)
    hello = prefill.receive(decode.open())
    assert hello is not None
    return decode, prefill, hello


WRONG: list[tuple[str, object, str]] = [
    ("role", "router", "HELLO.role"),
    ("card", "no base64!", "HELLO.card"),
    ("card", 7, "HELLO.card"),
    ("nonce", "00", "HELLO.nonce"),
    ("nonce", "G" * 64, "HELLO.nonce"),
    ("nonce", None, "HELLO.nonce"),
    ("layout", [], "HELLO.layout"),
    ("layout", {}, "HELLO.layout"),
    ("layout", {str(number): 1 for number in range(257)}, "HELLO.layout"),
    ("layout", {**LAYOUT, "layers": -1}, "HELLO.layout.layers"),
    ("layout", {**LAYOUT, "layers": 1.5}, "HELLO.layout.layers"),
    ("layout", {**LAYOUT, "kind": "a\nb"}, "HELLO.layout.kind"),
    ("layout", {**LAYOUT, "planes": [{"name": "kv"}]}, "HELLO.layout.planes"),
    ("max_seq_len", 0, "HELLO.max_seq_len"),
    ("max_seq_len", "8", "HELLO.max_seq_len"),
    ("magic", None, "HELLO.magic"),
    ("protocol", "1", "HELLO.protocol"),
]


@pytest.mark.parametrize(("field", "value", "path"), WRONG)
def test_a_wrong_field_is_named(field: str, value: object, path: str) -> None:
    decode, _, hello = opened()
    with pytest.raises(MalformedMessage) as caught:
        decode.receive({**hello, field: value})
    assert (caught.value.param or "").startswith(path)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_junk_in_any_place_is_taken_or_refused_in_words(data: st.DataObject) -> None:
    decode, prefill, hello = opened(data.draw(st.sampled_from([None, KEY])))
    name = data.draw(st.sampled_from([*hello, "later"]))
    hello[name] = data.draw(JUNK)
    try:
        prefill.receive(decode.receive(hello))
    except ControlError as error:
        assert error.message  # noqa: PT017 - that it is one of ours is what is tested
    else:
        assert prefill.peer is not None


def test_a_difference_travels_as_it_is() -> None:
    difference = Difference("transport", "shm", "tcp", "give both nodes the same --transport")
    assert Difference.parse(Fields("x", difference.to_json())) == difference
    assert str(difference) == (
        "transport: ours is shm, theirs tcp; give both nodes the same --transport"
    )
