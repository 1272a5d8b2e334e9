from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilert_transports.control.errors import MalformedMessage
from tilert_transports.control.frames import FrameReader, JSONObject, encode_frame
from tilert_transports.control.messages import (
    Abort,
    Claim,
    Commit,
    Decline,
    Grant,
    Message,
    Ping,
    Pong,
    Progress,
    Released,
    parse_message,
    to_json,
)

CLAIM = Claim("a1b2", "d-7", 3, 0, 1000, 52428800, 42)
DECLINE = Decline("a1b2", "d-7", 3, "aborted")
GRANT = Grant("a1b2", 3, 0, 5, 268435456, 134217728, 30.0)
MESSAGES: list[Message] = [
    CLAIM,
    GRANT,
    Progress(3, 12),
    Commit(3, 52428800),
    Commit(3, 52428800, checksum=0),
    Commit(3, 52428800, checksum=2**32 - 1),
    Abort(3, "the client left", settled=False),
    Released(3),
    Ping(0),
    Pong(2**53 - 1),
    replace(CLAIM, digest="0123456789abcdef"),
    DECLINE,
    Abort(3, "the client left", unwanted=True),
]


def test_the_objects_on_the_wire() -> None:
    assert [to_json(message) for message in (*MESSAGES[:5], *MESSAGES[6:9], *MESSAGES[10:])] == [
        {
            "type": "claim",
            "request": "a1b2",
            "incarnation": "d-7",
            "generation": 3,
            "rank": 0,
            "tokens": 1000,
            "nbytes": 52428800,
            "last_token": 42,
        },
        {
            "type": "grant",
            "request": "a1b2",
            "generation": 3,
            "rank": 0,
            "region": 5,
            "offset": 268435456,
            "nbytes": 134217728,
            "ttl": 30.0,
        },
        {"type": "progress", "generation": 3, "planes": 12},
        {"type": "commit", "generation": 3, "nbytes": 52428800},
        {"type": "commit", "generation": 3, "nbytes": 52428800, "checksum": 0},
        {
            "type": "abort",
            "generation": 3,
            "reason": "the client left",
            "settled": False,
            "unwanted": False,
        },
        {"type": "released", "generation": 3},
        {"type": "ping", "number": 0},
        {
            "type": "claim",
            "request": "a1b2",
            "incarnation": "d-7",
            "generation": 3,
            "rank": 0,
            "tokens": 1000,
            "nbytes": 52428800,
            "last_token": 42,
            "digest": "0123456789abcdef",
        },
        {
            "type": "decline",
            "request": "a1b2",
            "incarnation": "d-7",
            "generation": 3,
            "reason": "aborted",
        },
        {"type": "abort", "generation": 3, "reason": "the client left", "settled": True}
        | {"unwanted": True},
    ]


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_written_is_read_back_and_unknown_fields_are_ignored(message: Message) -> None:
    frame = encode_frame({"later": [1], **to_json(message)})
    (content,) = FrameReader().feed(frame)
    assert parse_message(content) == message


MISSING = [
    (message, field.name)
    for message in (
        CLAIM,
        DECLINE,
        GRANT,
        Progress(3, 12),
        Commit(3, 1),
        Abort(3, "x"),
        Released(3),
    )
    for field in fields(message)
    if field.name not in ("checksum", "digest", "unwanted")
]


@pytest.mark.parametrize(("message", "name"), MISSING)
def test_a_missing_field_is_named(message: Message, name: str) -> None:
    content = to_json(message)
    del content[name]
    path = f"{message.TYPE.upper()}.{name}"
    with pytest.raises(MalformedMessage, match=f"{path} is missing; .+ is needed") as caught:
        parse_message(content)
    assert caught.value.param == path
    wrong: object
    for wrong in ({"a": 1}, [[1]], None):
        with pytest.raises(MalformedMessage, match=f"{path} is {re.escape(repr(wrong))}"):
            parse_message({**content, name: wrong})


@pytest.mark.parametrize(
    ("message", "name", "value", "needed"),
    [
        (CLAIM, "request", "", "a text of 1 to 256 printable characters"),
        (CLAIM, "request", "a\nb", "printable"),
        (CLAIM, "request", "a" * 257, "1 to 256"),
        (CLAIM, "request", 7, "a text"),
        (CLAIM, "digest", "0123", "16 hex digits"),
        (CLAIM, "digest", "G" * 16, "16 hex digits"),
        (DECLINE, "generation", 0, "an integer of 1 or more"),
        (CLAIM, "generation", 0, "an integer of 1 or more"),
        (CLAIM, "generation", "x", "an integer of 1 or more"),
        (CLAIM, "generation", True, "an integer of 1 or more"),
        (CLAIM, "generation", 3.0, "an integer of 1 or more"),
        (CLAIM, "generation", 2**53, "an integer of 1 or more"),
        (CLAIM, "rank", -1, "an integer of 0 or more"),
        (GRANT, "ttl", 0, "more than 0"),
        (GRANT, "ttl", 86401, "at most 86400"),
        (GRANT, "ttl", True, "a number of seconds"),
        (GRANT, "ttl", "30", "a number of seconds"),
        (Commit(3, 1), "checksum", 2**32, "from 0 to 4294967295"),
        (Commit(3, 1), "checksum", "crc", "from 0 to 4294967295"),
        (Abort(3, "x"), "settled", 1, "true or false"),
        (Abort(3, "x"), "reason", 1, "a text"),
    ],
)
def test_a_wrong_value_is_shown_with_the_one_needed(
    message: Message, name: str, value: object, needed: str
) -> None:
    with pytest.raises(MalformedMessage, match=needed) as caught:
        parse_message({**to_json(message), name: value})
    assert f"{message.TYPE.upper()}.{name} is " in caught.value.message
    if len(repr(value)) < 60:
        assert repr(value) in caught.value.message


@pytest.mark.parametrize("tokens", [0, -1, "8", None])
def test_kv_05_a_length_that_is_none_is_refused(tokens: object) -> None:
    with pytest.raises(MalformedMessage, match=r"CLAIM\.tokens is .*an integer of 1 or more"):
        parse_message({**to_json(CLAIM), "tokens": tokens})


@pytest.mark.parametrize("name", ["done", "", None, 3, ["claim"]])
def test_an_unknown_type_is_named_with_the_known_ones(name: object) -> None:
    with pytest.raises(
        MalformedMessage, match=re.escape(f"message.type is {name!r}; one of claim")
    ):
        parse_message({"type": name})


def test_a_huge_value_makes_a_short_error() -> None:
    huge: JSONObject = {**to_json(CLAIM), "rank": ["x" * 10_000] * 10_000}
    with pytest.raises(MalformedMessage) as caught:
        parse_message(huge)
    assert len(caught.value.message) < 1000
    assert "\n" not in caught.value.message


def test_a_reason_is_cut_and_kept_on_one_line() -> None:
    read = parse_message(to_json(Abort(3, "a\nb\x1b[31m" + "x" * 5000)))
    assert isinstance(read, Abort)
    assert read.reason.startswith("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31m")
    assert len(read.reason) == 4096


def test_a_reason_that_is_no_unicode_still_leaves() -> None:
    (content,) = FrameReader().feed(encode_frame(to_json(Abort(3, "no file \udcff"))))
    assert parse_message(content) == Abort(3, "no file ?")


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@settings(deadline=None)
@given(st.sampled_from(MESSAGES), st.data())
def test_any_field_with_any_value_is_read_or_refused(message: Message, data: st.DataObject) -> None:
    content = to_json(message)
    name = data.draw(st.sampled_from([*content, "later"]))
    content[name] = data.draw(VALUES)
    try:
        read = parse_message(content)
    except MalformedMessage as error:
        blamed = (error.param or "").rpartition(".")[2]
    else:
        blamed = name
        assert parse_message(to_json(read)) == read
    assert blamed == name
