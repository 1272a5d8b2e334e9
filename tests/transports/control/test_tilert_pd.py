"""TileRT's dialect on recorded messages, in both directions."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilert_stream.errors import Busy
from tilert_transports.control.errors import (
    ControlError,
    FrameError,
    HandOffFailed,
    HandshakeRefused,
    MalformedMessage,
    OutOfOrder,
    PeerLost,
)
from tilert_transports.control.frames import FrameReader, JSONObject
from tilert_transports.control.tilert_pd import (
    TilertDone,
    TilertHello,
    TilertRequest,
    encode,
    explain_version,
    normalise_rid,
    refusal_of,
)
from tilert_transports.control.tilert_pd_prefill import TilertSender

from .tilert_recorded import (
    BARE_REQUEST_BYTES,
    BUSY_BYTES,
    DONE_BYTES,
    MOONCAKE_HELLO,
    MOONCAKE_HELLO_BYTES,
    NIXL_HELLO,
    NIXL_HELLO_BYTES,
    REQUEST,
    REQUEST_BYTES,
    TOO_LONG_BYTES,
)


def read(data: bytes) -> JSONObject:
    (content,) = FrameReader().feed(data)
    return content


@pytest.mark.parametrize(
    ("message", "recorded"),
    [
        (NIXL_HELLO, NIXL_HELLO_BYTES),
        (MOONCAKE_HELLO, MOONCAKE_HELLO_BYTES),
        (REQUEST, REQUEST_BYTES),
        (TilertRequest("5f0c", 0, 900, 42), BARE_REQUEST_BYTES),
        (TilertDone("5f0c", 0), DONE_BYTES),
    ],
)
def test_the_bytes_in_both_directions(
    message: TilertHello | TilertRequest | TilertDone, recorded: bytes
) -> None:
    assert encode(message.to_json()) == recorded
    assert type(message).parse(read(recorded)) == message


@pytest.mark.parametrize(
    ("request_id", "rid"),
    [
        ("chatcmpl-5f0c", "5f0c"),
        ("cmpl-5f0c", "5f0c"),
        ("chatcmpl-cmpl-5f0c", "cmpl"),
        ("chatcmpl-5f0c-0a1b2c3d", "5f0c"),
        ("cmpl-5f0c-0-0a1b2c3d", "5f0c"),
        ("cmpl-5f0c-12-0a1b2c3d", "5f0c"),
        ("5f0c-0a1b2c3d4", "5f0c-0a1b2c3d4"),
        ("5f0c-0A1B2C3D", "5f0c-0A1B2C3D"),
        ("5f0c-", "5f0c"),
        ("5f0c--7", "5f0c-"),
        ("5f0c-1234-0a1b2c3d", "5f0c-1234"),
        ("my-req-1", "my-req"),
        ("my-req-2", "my-req"),
        ("foo-abcd", "foo"),
        ("foo-abcd-0a1b2c3d", "foo-abcd"),
        ("a-12-34", "a"),
        ("chatcmpl-", ""),
        ("", ""),
        ("-", ""),
        ("chatcmpl", "chatcmpl"),
    ],
)
def test_a_request_id_as_both_of_tilerts_ends_derive_it(request_id: str, rid: str) -> None:
    assert normalise_rid(request_id) == rid


@settings(deadline=None)
@given(
    st.text("0123456789abcdef", min_size=1),
    st.sampled_from(["", "chatcmpl-", "cmpl-"]),
    st.sampled_from(["", "-0a1b2c3d", "-0-0a1b2c3d", "-127-deadbeef"]),
)
def test_only_an_id_without_a_dash_comes_back(rid: str, prefix: str, suffix: str) -> None:
    assert normalise_rid(prefix + rid + suffix) == rid


def test_versions_are_explained() -> None:
    assert explain_version(10) == "10 (GLM-5 with its draft layer, fp8 cache)"
    assert explain_version(1050) == "1050 (GLM-5 without its draft layer, bf16 cache)"
    assert explain_version(51) == "51 (DeepSeek-V3.2, bf16 cache)"
    assert explain_version(7) == "7"


# --- our prefill side to TileRT's decode server --------------------------------------------------


def sender(version: int = 10, transport: str = "nixl") -> TilertSender:
    return TilertSender(REQUEST, version, transport)


def test_a_hand_over_to_tilerts_decode_server() -> None:
    side = sender()
    with pytest.raises(OutOfOrder, match="has not said hello yet"):
        side.request()
    for byte in NIXL_HELLO_BYTES:
        assert side.hello is None
        side.receive(bytes([byte]))
    assert side.hello == NIXL_HELLO
    assert side.request() == REQUEST_BYTES
    assert side.done() == DONE_BYTES


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"layout_version": 1010},
            r"layout_version: ours is 10 \(GLM-5 with its draft layer, fp8 cache\), theirs 1010"
            r" \(GLM-5 without its draft layer, fp8 cache\); .*TILERT_PD_NO_MTP",
        ),
        (
            {"transport": "mooncake", "session_id": "10.0.0.7:1"},
            "transport: ours is nixl, theirs mooncake; .*--transport",
        ),
        ({"max_seq_len": 899}, "a prompt of 900 tokens, theirs 899; .*--max-seq-len"),
        ({"magic": "tilert"}, "magic word is 'tilert', not 'tilert-pd'"),
        ({"protocol_version": 2}, "speaks tilert-pd of protocol_version 2"),
    ],
)
def test_kv_06_a_mismatch_is_found_before_the_request(changes: JSONObject, fault: str) -> None:
    side = sender()
    with pytest.raises(HandshakeRefused, match=fault) as caught:
        side.receive(encode({**NIXL_HELLO.to_json(), **changes}))
    assert caught.value.status == 503
    assert side.hello is None
    with pytest.raises(OutOfOrder):
        side.request()


def test_kv_05_a_prompt_as_long_as_the_buffer_fits() -> None:
    side = sender()
    side.receive(encode({**NIXL_HELLO.to_json(), "max_seq_len": 900}))
    assert side.request() == REQUEST_BYTES


def test_kv_01_a_busy_decode_server_is_not_written_to() -> None:
    side = sender()
    with pytest.raises(Busy, match="receiving another request") as caught:
        side.receive(encode({**NIXL_HELLO.to_json(), "busy": True}))
    assert caught.value.retryable
    with pytest.raises(OutOfOrder):
        side.request()


@pytest.mark.parametrize(
    ("recorded", "error", "fault"),
    [
        (BUSY_BYTES, Busy, "busy with '77aa'"),
        (TOO_LONG_BYTES, HandOffFailed, "refuses the request: seq_len exceeds max_seq_len"),
    ],
)
def test_after_a_refusal_no_done_leaves(
    recorded: bytes, error: type[Busy | HandOffFailed], fault: str
) -> None:
    side = sender()
    side.receive(NIXL_HELLO_BYTES)
    side.request()
    with pytest.raises(error, match=fault):
        side.receive(recorded)
    with pytest.raises(error, match=fault):
        side.done()


def test_a_refusal_in_one_piece_with_the_hello() -> None:
    side = sender()
    with pytest.raises(Busy):
        side.receive(NIXL_HELLO_BYTES + BUSY_BYTES)
    with pytest.raises(Busy):
        side.done()


def test_an_answer_that_is_no_refusal_ends_it_too() -> None:
    side = sender()
    side.receive(NIXL_HELLO_BYTES)
    with pytest.raises(MalformedMessage, match=r"refusal\.error is missing"):
        side.receive(encode({"accepted": True}))


@pytest.mark.parametrize("cut", [0, 3, 4, 50])
def test_a_decode_server_that_hangs_up(cut: int) -> None:
    side = sender()
    side.receive(NIXL_HELLO_BYTES[:cut])
    with pytest.raises(PeerLost if cut == 0 else FrameError):
        side.receive_end()


HELLO_FAULTS: list[tuple[str, object]] = [
    ("magic", None),
    ("layout_version", "10"),
    ("transport", ""),
    ("max_seq_len", 0),
    ("busy", 0),
    ("nixl_meta", "no base64!"),
    ("nixl_meta", None),
    ("nixl_dev", -1),
    ("kv_base", -1),
    ("ki_base", "0x7fff"),
    ("protocol_version", "2"),
]


@pytest.mark.parametrize(("name", "value"), HELLO_FAULTS)
def test_a_wrong_field_of_a_hello_is_named(name: str, value: object) -> None:
    with pytest.raises(MalformedMessage, match=rf"hello\.{name} is .* needed"):
        TilertHello.parse({**NIXL_HELLO.to_json(), name: value})


def test_a_nixl_hello_without_a_device_means_the_first() -> None:
    content = NIXL_HELLO.to_json()
    del content["nixl_dev"]
    assert TilertHello.parse(content).card == {"nixl_meta": "bWV0YWRhdGE=", "nixl_dev": 0}


@pytest.mark.parametrize(
    ("name", "value"),
    [("rid", ""), ("rid", 7), ("rank", "0"), ("seq_len", 0), ("seq_len", "8"), ("sampling", 7)],
)
def test_a_wrong_field_of_a_request_is_named(name: str, value: object) -> None:
    with pytest.raises(MalformedMessage, match=rf"request\.{name} is "):
        TilertRequest.parse({**REQUEST.to_json(), name: value})


@pytest.mark.parametrize("value", [False, None, 1, "true"])
def test_done_is_true(value: object) -> None:
    with pytest.raises(MalformedMessage, match=re.escape(f"done.done is {value!r}; true")):
        TilertDone.parse({**TilertDone("5f0c", 0).to_json(), "done": value})


def test_refusals_of_a_strange_kind() -> None:
    assert refusal_of({"error": "busy"}).message == "the decode node is busy with None"
    with pytest.raises(MalformedMessage):
        refusal_of({"busy_rid": "x"})


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_after_a_hello_are_a_refusal_or_nothing_yet(data: bytes, cut: int) -> None:
    side = sender()
    side.receive(NIXL_HELLO_BYTES)
    try:
        side.receive(data[:cut])
        side.receive(data[cut:])
    except (ControlError, Busy):
        return
    assert side.done() == DONE_BYTES


def test_the_recordings_are_what_json_dumps_writes() -> None:
    for recorded in (NIXL_HELLO_BYTES, REQUEST_BYTES, BUSY_BYTES, TOO_LONG_BYTES, DONE_BYTES):
        assert json.dumps(json.loads(recorded[4:])).encode() == recorded[4:]
        assert int.from_bytes(recorded[:4], "big") == len(recorded) - 4
