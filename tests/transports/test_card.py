from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_transports.bundle import Bundle, Part
from tilert_transports.card import Card
from tilert_transports.errors import HandshakeMismatch

INCARNATION = "0123456789abcdef" * 2

cards = st.builds(
    Card,
    st.just("tcp"),
    st.just(INCARNATION),
    st.dictionaries(st.integers(0, 2**31), st.integers(1, 2**62)),
    st.dictionaries(st.text(), st.text() | st.integers(0, 2**62)),
)
bundles = st.builds(
    Bundle,
    st.just(INCARNATION),
    st.text(),
    st.dictionaries(
        st.text(),
        st.builds(Part, st.binary(), st.dictionaries(st.integers(0, 99), st.integers(0, 99))),
    ),
)


@given(cards)
def test_a_card_comes_back_as_it_was(card: Card) -> None:
    assert Card.decode(card.encode(), "tcp") == card


@given(bundles)
def test_a_bundle_comes_back_as_it_was(bundle: Bundle) -> None:
    assert Bundle.decode(bundle.encode()) == bundle


JSON: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


FIELDS: dict[str, st.SearchStrategy[object]] = {
    "incarnation": st.just(INCARNATION) | JSON,
    "regions": st.just([[0, 9]]) | JSON,
    "details": st.just(dict[str, object]()) | JSON,
    "host": st.just("h") | JSON,
    "parts": st.just([["tcp", "", list[object]()]]) | JSON,
}
HEAD: dict[str, st.SearchStrategy[object]] = {
    "version": st.just(1),
    "transport": st.sampled_from(["tcp", "auto"]),
}


@given(
    st.binary()
    | JSON.map(orjson.dumps)
    | st.fixed_dictionaries(HEAD, optional=FIELDS).map(orjson.dumps)
)
def test_whatever_comes_is_a_card_or_a_mismatch(data: bytes) -> None:
    for decode in (lambda: Card.decode(data, "tcp"), lambda: Bundle.decode(data)):
        try:
            assert decode().incarnation == INCARNATION
        except HandshakeMismatch as error:
            assert "card" in error.message  # noqa: PT017 - no error at all is right, too


GOOD: dict[str, object] = {
    "version": 1,
    "transport": "tcp",
    "incarnation": INCARNATION,
    "regions": [[0, 4096]],
    "details": {},
}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", 2, "version is 2, ours is 1"),
        ("version", True, "version is True, ours is 1"),
        ("version", None, "version is None, ours is 1"),
        ("transport", "nixl", "transport is 'nixl', ours is 'tcp'"),
        ("incarnation", "AB" * 16, "needs 32 hex digits"),
        ("incarnation", 7, "incarnation is 7, needs 32 hex digits"),
        ("regions", None, "regions is None, needs a list"),
        ("regions", [[0, 0]], "[0, 0] is no region"),
        ("regions", [[-1, 5]], "[-1, 5] is no region"),
        ("regions", [[1, 5], [1, 6]], "[1, 6] is no region"),
        ("regions", [[1]], "[1] is no region"),
        ("details", [], "details is [], needs an object"),
        ("details", {"port": 1.5}, "port is 1.5, needs a string or number"),
    ],
)
def test_a_bad_field_is_named_with_its_value(field: str, value: object, message: str) -> None:
    Card.decode(orjson.dumps(GOOD), "tcp")
    with pytest.raises(HandshakeMismatch) as caught:
        Card.decode(orjson.dumps({**GOOD, field: value}), "tcp")
    assert message in caught.value.message
    assert not caught.value.retryable


def test_details_are_looked_at_when_they_are_needed() -> None:
    card = Card("tcp", INCARNATION, {}, {"host": 5, "port": "http"})
    with pytest.raises(HandshakeMismatch, match="host is 5, needs a string"):
        card.text("host")
    with pytest.raises(HandshakeMismatch, match="port is 'http', needs a number"):
        card.number("port")
    with pytest.raises(HandshakeMismatch, match="secret is None, needs a string"):
        card.secret(16)


def test_a_damaged_card_says_where() -> None:
    with pytest.raises(HandshakeMismatch, match="damaged at byte 1"):
        Card.decode(b"{]", "tcp")
