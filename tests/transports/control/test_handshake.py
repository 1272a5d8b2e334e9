from __future__ import annotations

from dataclasses import replace

import pytest

from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.errors import (
    HandshakeRefused,
    MalformedMessage,
    OutOfOrder,
)
from tilert_transports.control.frames import FrameReader, JSONObject, encode_frame
from tilert_transports.control.grant_id import GrantId
from tilert_transports.control.handshake import DecodeHandshake, PrefillHandshake
from tilert_transports.control.hello import Hello, mismatch

from .nodes import DECODE, KEY, LAYOUT, PREFILL, shake, with_layout


def opened(
    key: ClusterKey | None = None,
) -> tuple[DecodeHandshake, PrefillHandshake, JSONObject]:
    """Both sides, and the prefill node's HELLO on its way."""
    decode, prefill = DecodeHandshake(DECODE, key), PrefillHandshake(PREFILL, key)
    hello = prefill.receive(decode.open())
    assert hello is not None
    return decode, prefill, hello


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
def test_two_nodes_that_fit_know_each_other(key: ClusterKey | None) -> None:
    decode, prefill = DecodeHandshake(DECODE, key), PrefillHandshake(PREFILL, key)
    shake(decode, prefill)
    assert prefill.peer is not None
    assert decode.peer is not None
    assert replace(prefill.peer, nonce=bytes(32)) == DECODE
    assert replace(decode.peer, nonce=bytes(32)) == PREFILL
    assert prefill.peer.nonce != decode.peer.nonce


def test_the_objects_on_the_wire() -> None:
    decode, _, hello = opened(KEY)
    challenge = decode.open()
    nonce = challenge.pop("nonce")
    assert isinstance(nonce, str)
    assert len(bytes.fromhex(nonce)) == 32
    assert challenge == {
        "type": "challenge",
        "magic": "tilert-stream",
        "protocol": 1,
        "keyed": True,
    }
    assert list(FrameReader().feed(encode_frame(hello))) == [hello]
    assert hello.pop("nonce") != nonce
    assert isinstance(hello.pop("proof"), str)
    assert hello == {
        "type": "hello",
        "magic": "tilert-stream",
        "protocol": 1,
        "node": "prefill-0",
        "role": "prefill",
        "incarnation": "p-1",
        "layout": {
            "kind": "mla_nsa",
            "version": 10,
            "model": "glm5",
            "dtype": "fp8_ds_mla",
            "block_size": 64,
            "layers": 79,
            "draft_layers": 1,
            "senders": 1,
        },
        "max_seq_len": 8192,
        "transport": "shm",
        "card": "Y2FyZCBvZiBwcmVmaWxsLTA=",
    }


CHANGES = [
    (replace(PREFILL, transport="tcp"), "transport", "shm", "tcp", "--transport"),
    (with_layout(PREFILL, kind="gqa"), "kind", "mla_nsa", "gqa", "--model"),
    (with_layout(PREFILL, version=1010), "version", "10", "1010", "--model"),
    (with_layout(PREFILL, model="glm6"), "model", "glm5", "glm6", "--model"),
    (with_layout(PREFILL, dtype="bfloat16"), "dtype", "fp8_ds_mla", "bfloat16", "--kv-cache-dtype"),
    (with_layout(PREFILL, block_size=16), "block_size", "64", "16", "--block-size"),
    (with_layout(PREFILL, layers=78), "layers", "79", "78", "--model"),
    (with_layout(PREFILL, draft_layers=0), "draft_layers", "1", "0", "--with-mtp"),
    (with_layout(PREFILL, senders=2), "senders", "1", "2", "--senders"),
    (with_layout(PREFILL, kv_heads=4), "kv_heads", "not given", "4", "--model"),
    (with_layout(PREFILL, senders=True), "senders", "1", "True", "--senders"),
    (replace(PREFILL, role="decode"), "role", "decode", "decode", "control port"),
]


@pytest.mark.parametrize(("theirs", "field", "own", "other", "flag"), CHANGES)
def test_kv_06_a_mismatch_names_both_values_and_the_flag_on_both_sides(
    theirs: Hello, field: str, own: str, other: str, flag: str
) -> None:
    decode, prefill = DecodeHandshake(DECODE, KEY), PrefillHandshake(theirs, KEY)
    hello = prefill.receive(decode.open())
    assert hello is not None
    with pytest.raises(HandshakeRefused) as caught:
        decode.receive(hello)
    (difference,) = caught.value.differences
    assert (difference.field, difference.ours, difference.theirs) == (field, own, other)
    assert flag in difference.fix
    for value in (own, other, flag, theirs.node):
        assert value in caught.value.message
    assert decode.peer is None
    with pytest.raises(HandshakeRefused) as told:
        prefill.receive(decode.refusal(caught.value))
    assert told.value.differences == (difference.turned(),)
    assert f"ours is {other}, theirs {own}" in told.value.message
    assert told.value.status == 503
    assert prefill.peer is None


def test_all_differences_are_named_at_once() -> None:
    theirs = replace(with_layout(PREFILL, dtype="bfloat16", layers=78), transport="nixl")
    found = mismatch(DECODE, theirs)
    assert [item.field for item in found] == ["transport", "dtype", "layers"]
    assert tuple(item.turned() for item in found) == mismatch(theirs, DECODE)


def test_the_longest_sequence_and_the_order_of_fields_need_not_be_the_same() -> None:
    theirs = replace(PREFILL, layout=dict(reversed(list(LAYOUT.items()))), max_seq_len=131072)
    assert mismatch(DECODE, theirs) == ()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"protocol": 2}, "speaks protocol 2, this node 1; run the same release"),
        ({"magic": "tilert-pd"}, "magic word is 'tilert-pd', ours 'tilert-stream'.*dialect"),
        ({"magic": "x"}, "magic word is 'x', ours 'tilert-stream'$"),
    ],
)
def test_kv_06_another_protocol_is_told_before_any_other_field_is_read(
    changes: JSONObject, fault: str
) -> None:
    decode, _, _ = opened()
    for kind in ("hello", "challenge"):
        content: JSONObject = {"type": kind, "magic": "tilert-stream", "protocol": 1, **changes}
        side = decode if kind == "hello" else PrefillHandshake(PREFILL)
        with pytest.raises(HandshakeRefused, match=fault):
            side.receive(content)


def test_a_tilert_decode_node_is_recognised_by_its_opening() -> None:
    content: JSONObject = {"magic": "tilert-pd", "layout_version": 10, "transport": "nixl"}
    with pytest.raises(HandshakeRefused, match="give that node's dialect, tilert-pd"):
        PrefillHandshake(PREFILL).receive(content)


OTHER = ClusterKey("another cluster's secret")


@pytest.mark.parametrize(
    ("decode_key", "prefill_key", "fault"),
    [
        (KEY, None, "this node has no cluster key, the peer has one"),
        (None, KEY, "this node has a cluster key, the peer has none"),
    ],
)
def test_a_key_on_one_side_only_is_told_before_anything_is_revealed(
    decode_key: ClusterKey | None, prefill_key: ClusterKey | None, fault: str
) -> None:
    decode, prefill = DecodeHandshake(DECODE, decode_key), PrefillHandshake(PREFILL, prefill_key)
    with pytest.raises(HandshakeRefused, match=f"{fault}.*--cluster-key"):
        prefill.receive(decode.open())


def test_pd_25_a_node_with_another_key_learns_nothing() -> None:
    decode, prefill = DecodeHandshake(DECODE, KEY), PrefillHandshake(PREFILL, OTHER)
    hello = prefill.receive(decode.open())
    assert hello is not None
    with pytest.raises(HandshakeRefused, match="cluster key is another one") as caught:
        decode.receive(hello)
    said = repr(decode.refusal(caught.value))
    assert "staple" not in said
    assert "mla_nsa" not in said
    assert "card" not in said


def test_a_decode_node_with_another_key_is_refused() -> None:
    decode, prefill, hello = opened(KEY)
    answer = decode.receive(hello)
    for proof in ("0" * 64, hello["proof"], None, 7, "é"):
        with pytest.raises(HandshakeRefused, match="cluster key"):
            prefill.receive({**answer, "proof": proof})
    prefill.receive(answer)
    assert prefill.peer is not None


@pytest.mark.parametrize("field", ["card", "node", "incarnation", "transport", "later"])
def test_an_altered_hello_is_refused(field: str) -> None:
    decode, _, hello = opened(KEY)
    with pytest.raises(HandshakeRefused, match="cluster key is another one"):
        decode.receive({**hello, field: "YWx0ZXJlZA=="})


def test_a_recorded_hello_opens_no_other_connection() -> None:
    _, _, hello = opened(KEY)
    with pytest.raises(HandshakeRefused, match="cluster key is another one"):
        DecodeHandshake(DECODE, KEY).receive(hello)


def test_a_proof_cannot_be_sent_back() -> None:
    decode, prefill, hello = opened(KEY)
    decode.receive(hello)
    with pytest.raises(HandshakeRefused):
        prefill.receive(hello)


def test_fields_of_a_later_release_are_part_of_the_proof_and_ignored() -> None:
    decode, prefill = DecodeHandshake(DECODE, KEY), PrefillHandshake(PREFILL, KEY)
    challenge = {**decode.open(), "later": [1, 2]}
    hello = prefill.receive(challenge)
    assert hello is not None
    assert prefill.receive(decode.receive(hello)) is None


@pytest.mark.parametrize("kind", ["claim", "challenge", None, ["hello"]])
def test_nothing_but_a_hello_opens(kind: object) -> None:
    decode, _, hello = opened()
    with pytest.raises(OutOfOrder, match="hello or refused is needed"):
        decode.receive({**hello, "type": kind})


def test_a_decode_node_answers_hello_or_refused() -> None:
    _, prefill, _ = opened()
    with pytest.raises(OutOfOrder, match="the peer opens with 'grant'; hello or refused is needed"):
        prefill.receive({"type": "grant"})


def test_a_refusal_without_differences_carries_its_reason() -> None:
    decode, prefill, _ = opened()
    refusal = decode.refusal(HandshakeRefused("no room for another connection"))
    with pytest.raises(HandshakeRefused, match="refuses this prefill node: no room for another"):
        prefill.receive(refusal)


GRANT = GrantId("a1", "d-1", 7)


@pytest.mark.parametrize("key", [None, OTHER], ids=["layout", "key"])
def test_kv_06_a_refused_hello_says_whose_request_fails(key: ClusterKey | None) -> None:
    decode = DecodeHandshake(DECODE, None if key is None else KEY)
    theirs = replace(with_layout(PREFILL, dtype="bfloat16"), grant=GRANT)
    prefill = PrefillHandshake(theirs, key)
    hello = prefill.receive(decode.open())
    assert hello is not None
    with pytest.raises(HandshakeRefused) as caught:
        decode.receive(hello)
    assert decode.grant == GRANT
    with pytest.raises(HandshakeRefused) as told:
        prefill.receive(decode.refusal(caught.value))
    assert prefill.refusal(told.value) is None, "the decode node knows"


def test_kv_06_another_releases_hello_says_whose_request_fails() -> None:
    decode, prefill = DecodeHandshake(DECODE), PrefillHandshake(replace(PREFILL, grant=GRANT))
    hello = prefill.receive(decode.open())
    assert hello is not None
    with pytest.raises(HandshakeRefused, match="speaks protocol 2"):
        decode.receive({**hello, "protocol": 2})
    assert decode.grant == GRANT


def test_kv_06_prefill_refuses_in_place_of_its_hello() -> None:
    decode, prefill = DecodeHandshake(DECODE, KEY), PrefillHandshake(replace(PREFILL, grant=GRANT))
    with pytest.raises(HandshakeRefused) as caught:
        prefill.receive(decode.open())
    refusal = prefill.refusal(caught.value)
    assert refusal is not None
    with pytest.raises(HandshakeRefused, match=r"prefill node refuses.*no cluster key") as told:
        decode.receive(refusal)
    assert told.value.status == 503
    assert decode.grant == GRANT


@pytest.mark.parametrize(("grant", "declined"), [(GRANT, True), (None, False)])
def test_kv_06_prefill_declines_where_the_decode_node_has_taken_it(
    grant: GrantId | None, declined: bool
) -> None:
    decode, prefill = DecodeHandshake(DECODE), PrefillHandshake(replace(PREFILL, grant=grant))
    hello = prefill.receive(decode.open())
    assert hello is not None
    answer = decode.receive(hello)
    with pytest.raises(HandshakeRefused) as caught:
        prefill.receive({**answer, "transport": "tcp"})
    said = prefill.refusal(caught.value)
    assert (said is not None) is declined
    if said is not None:
        assert said["type"] == "decline"
        assert (said["request"], said["generation"]) == ("a1", 7)
        assert "--transport" in str(said["reason"])


def test_a_grant_that_cannot_be_read_is_named() -> None:
    decode, _, hello = opened()
    with pytest.raises(MalformedMessage, match=r"HELLO\.grant\.generation"):
        decode.receive({**hello, "grant": {"request": "a1", "incarnation": "d-1"}})
    assert decode.grant is None
