from __future__ import annotations

import hashlib
import hmac
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilert_stream.errors import AuthenticationFailed, ConfigError
from tilert_transports.control.auth import (
    SIGNATURE_HEADER,
    ClusterKey,
    RequestVerifier,
    new_nonce,
)
from tilert_transports.control.errors import SignatureInvalid, SignatureMisdirected

SECRET = "correct horse battery staple"
KEY = ClusterKey(SECRET)
BODY = b'{"rid":"a1b2"}'


class Clock:
    def __init__(self) -> None:
        self.now = 1_764_666_000.0

    def __call__(self) -> float:
        return self.now


NODE = "0123456789abcdef" * 2


def verifier(clock: Clock) -> RequestVerifier:
    return RequestVerifier(KEY, clock=clock)


def test_a_signed_request_is_taken() -> None:
    clock = Clock()
    checks = verifier(clock)
    header = KEY.sign(checks.node, "POST", "/pd/reserve", BODY, now=clock.now)
    checks.check(header, "POST", "/pd/reserve", BODY)


def test_the_input_of_the_signature() -> None:
    header = KEY.sign(NODE, "POST", "/pd/cancel?x=1", BODY, now=1_764_666_000)
    node, stamp, nonce, given = (part.partition("=")[2] for part in header.split(","))
    assert node == NODE
    assert stamp == "1764666000"
    parts = [b"http", *(part.encode() for part in (NODE, "POST", "/pd/cancel?x=1", stamp, nonce))]
    parts.append(BODY)
    content = b"tilert-stream 1" + b"".join(len(p).to_bytes(8, "big") + p for p in parts)
    assert given == hmac.new(SECRET.encode(), content, hashlib.sha256).hexdigest()


def test_both_clocks_are_the_systems_unless_told_otherwise() -> None:
    checks = RequestVerifier(KEY)
    header = KEY.sign(checks.node, "GET", "/", b"")
    assert abs(int(header.split(",")[1].removeprefix("t=")) - time.time()) < 60
    checks.check(header, "GET", "/", b"")


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/pd/reserve", BODY),
        ("POST", "/pd/decode", BODY),
        ("POST", "/pd/reserve?", BODY),
        ("POST", "/pd/reserve", BODY + b" "),
        ("POST", "/pd/reserve", b""),
        ("POS", "T/pd/reserve", BODY),
    ],
)
def test_a_signature_is_for_one_method_target_and_body(
    method: str, target: str, body: bytes
) -> None:
    clock = Clock()
    checks = verifier(clock)
    header = KEY.sign(checks.node, "POST", "/pd/reserve", BODY, now=clock.now)
    with pytest.raises(SignatureInvalid, match="not signed with this node's cluster key"):
        checks.check(header, method, target, body)


def test_what_one_node_has_heard_is_refused_by_another_and_after_a_restart() -> None:
    clock = Clock()
    checks, other = verifier(clock), verifier(clock)
    header = KEY.sign(checks.node, "POST", "/pd/reserve", BODY, now=clock.now)
    with pytest.raises(SignatureMisdirected) as caught:
        other.check(header, "POST", "/pd/reserve", BODY)
    assert caught.value.status == 401
    for told in (checks.node, other.node, "tilert-node", "restarted"):
        assert told in caught.value.message
    checks.check(header, "POST", "/pd/reserve", BODY)


def test_a_signature_cannot_be_addressed_to_another_node() -> None:
    clock = Clock()
    checks = verifier(clock)
    header = KEY.sign(NODE, "POST", "/", b"", now=clock.now).replace(NODE, checks.node)
    with pytest.raises(SignatureInvalid, match="altered on its way"):
        checks.check(header, "POST", "/", b"")


def test_pd_25_another_key_is_refused_and_neither_is_shown() -> None:
    clock = Clock()
    checks = verifier(clock)
    other = ClusterKey("another cluster's secret")
    header = other.sign(checks.node, "POST", "/", b"", now=clock.now)
    with pytest.raises(AuthenticationFailed) as caught:
        checks.check(header, "POST", "/", b"")
    assert caught.value.status == 401
    assert "secret" not in caught.value.message
    assert "horse" not in caught.value.message


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=1",
        "to=0,t=1,n=2,s=3",
        f"t=1,n={'0' * 32},s={'0' * 64}",
        f"to={NODE},t=-1,n={'0' * 32},s={'0' * 64}",
        "Bearer x",
    ],
)
def test_another_form_is_refused(header: str) -> None:
    with pytest.raises(SignatureInvalid, match="has not the form to=…,t=…,n=…,s=…"):
        verifier(Clock()).check(header, "POST", "/", b"")


def test_a_missing_header_is_named_with_the_flag() -> None:
    with pytest.raises(SignatureInvalid, match=rf"{SIGNATURE_HEADER} header.*--cluster-key"):
        verifier(Clock()).check(None, "POST", "/", b"")


@pytest.mark.parametrize(
    ("apart", "fault"), [(31, "signed 31 s ago; 30 s"), (-31, "signed 31 s ahead; 30 s")]
)
def test_an_old_or_early_request_is_refused(apart: int, fault: str) -> None:
    clock = Clock()
    checks = verifier(clock)
    header = KEY.sign(checks.node, "POST", "/", b"", now=clock.now)
    clock.now += apart
    with pytest.raises(SignatureInvalid, match=fault):
        checks.check(header, "POST", "/", b"")


@pytest.mark.parametrize("apart", [-30, 0, 30])
def test_a_request_is_taken_once(apart: int) -> None:
    clock = Clock()
    checks = verifier(clock)
    header = KEY.sign(checks.node, "POST", "/", b"", now=clock.now)
    clock.now += apart
    checks.check(header, "POST", "/", b"")
    for _ in range(3):
        with pytest.raises(SignatureInvalid, match="used before"):
            checks.check(header, "POST", "/", b"")
    again = KEY.sign(checks.node, "POST", "/", b"", now=clock.now)
    checks.check(again, "POST", "/", b"")


def test_the_memory_of_nonces_never_ends_before_the_signature_does() -> None:
    clock = Clock()
    checks = verifier(clock)
    early = KEY.sign(checks.node, "POST", "/", b"", now=clock.now + 30)
    checks.check(early, "POST", "/", b"")
    for _ in range(60):
        clock.now += 1
        checks.check(KEY.sign(checks.node, "GET", "/", b"", now=clock.now), "GET", "/", b"")
        with pytest.raises(SignatureInvalid, match="used before"):
            checks.check(early, "POST", "/", b"")
    clock.now += 1
    with pytest.raises(SignatureInvalid, match="31 s ago"):
        checks.check(early, "POST", "/", b"")


def test_a_stranger_does_not_fill_the_memory() -> None:
    clock = Clock()
    checks = verifier(clock)
    header = KEY.sign(checks.node, "POST", "/", b"", now=clock.now)
    with pytest.raises(SignatureInvalid):
        checks.check(header, "POST", "/other", b"")
    checks.check(header, "POST", "/", b"")


@pytest.mark.parametrize("secret", ["", "x" * 15])
def test_a_short_key_is_refused(secret: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster_key has {len(secret)} bytes; it needs 16"):
        ClusterKey(secret)


def test_a_key_is_never_printed() -> None:
    assert "horse" not in repr(KEY)


def test_nonces_are_new() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
    assert {len(new_nonce()) for _ in range(5)} == {32}


TEXT = st.text(max_size=6)
PARTS = st.tuples(TEXT, TEXT, TEXT, st.binary(max_size=6))


@settings(deadline=None)
@given(PARTS, PARTS)
def test_two_requests_never_share_a_signature(
    one: tuple[str, str, str, bytes], other: tuple[str, str, str, bytes]
) -> None:
    stamped = ("1764666000", "0" * 32)
    same = KEY.request_signature(*one, *stamped) == KEY.request_signature(*other, *stamped)
    assert same == (one == other)
