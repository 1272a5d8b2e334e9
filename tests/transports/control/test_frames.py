from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilert_transports.control.errors import FrameError
from tilert_transports.control.frames import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    FrameReader,
    JSONObject,
    encode_frame,
    frame,
)

LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=4)


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        yield data[start:end]


def read(data: bytes, cuts: list[int]) -> tuple[list[JSONObject], str | None]:
    """What comes out of ``data`` in these pieces, and the error that ended it."""
    reader, found = FrameReader(), list[JSONObject]()
    try:
        for piece in pieces(data, cuts):
            found.extend(reader.feed(piece))
        reader.end()
    except FrameError as error:
        return found, error.message
    return found, None


def nested(levels: int) -> JSONObject:
    content: JSONObject = {}
    for _ in range(levels - 1):
        content = {"in": content}
    return content


def test_the_bytes_of_a_frame() -> None:
    assert encode_frame({"rid": "a1", "rank": 0}) == b'\x00\x00\x00\x15{"rid":"a1","rank":0}'
    assert list(FrameReader().feed(b'\x00\x00\x00\x16{"rid": "a1","rank":0}')) == [
        {"rid": "a1", "rank": 0}
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(OBJECTS, max_size=3), st.lists(st.integers(0, 10**6), max_size=12))
def test_any_split_gives_the_same_messages(objects: list[JSONObject], cuts: list[int]) -> None:
    data = b"".join(map(encode_frame, objects))
    assert read(data, cuts) == (objects, None)
    assert read(data, list(range(len(data)))) == (objects, None), "byte by byte"


FRAGMENTS = st.sampled_from(
    [
        b"",
        b"\x00\x00\x00\x02{}",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x03nul",
        b"\x00\x00\x00",
        b"\x00",
        b"{}",
        b"GET / HTTP/1.1\r\n\r\n",
        b'\x00\x00\x00\x07{"a":1}',
        b"\xff\xff\xff\xff",
    ]
)


@settings(deadline=None)
@given(st.lists(FRAGMENTS | st.binary(max_size=9), max_size=6), st.lists(st.integers(0, 99)))
def test_any_split_of_garbage_gives_the_same_messages_and_the_same_error(
    fragments: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(fragments)
    assert read(data, cuts) == read(data, [])


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", r"length is 1195725856 \(bytes b'GET '\).*another protocol"),
        (b"\x16\x03\x01\x02\x00\x01", r"length is 369295618"),
        (b"\x00\x00\x00\x00", "length is 0"),
        (b"\x00\x00\x00\x01x", "length is 1 "),
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "from 2 to 16777216"),
        (frame(b"not json"), "frame of 8 bytes is no JSON"),
        (frame(b'{"a":"\xff"}'), "no JSON"),
        (frame(b'{"a":NaN}'), "no JSON"),
        (frame(b'{"a":1}x'), "no JSON"),
        (frame(b"[1]"), "a JSON list, not an object"),
        (frame(b'"hello"'), "a JSON str, not an object"),
        (frame(b"null"), "a JSON NoneType, not an object"),
        (encode_frame(nested(MAX_DEPTH + 1)), "deeper than 16 levels"),
        (frame(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "no JSON: depth limit"),
        (frame(b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}"), "deeper than 16 levels"),
    ],
)
def test_what_is_no_frame_is_named_and_stays_refused(data: bytes, fault: str) -> None:
    reader = FrameReader()
    with pytest.raises(FrameError, match=fault) as caught:
        list(reader.feed(data))
    for again in (reader.end, lambda: list(reader.feed(encode_frame({})))):
        with pytest.raises(FrameError) as repeated:
            again()
        assert repeated.value is caught.value


def test_the_depth_that_is_allowed() -> None:
    wide: JSONObject = {"items": [{} for _ in range(100)]}
    for content in (nested(MAX_DEPTH), wide):
        assert list(FrameReader().feed(encode_frame(content))) == [content]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x00\x00\x00", "3 bytes into a frame's length of 4"),
        (b"\x00\x00\x00\x15", "0 bytes into a frame of 21"),
        (b'\x00\x00\x00\x15{"rid"', "6 bytes into a frame of 21"),
    ],
)
def test_a_connection_that_ends_inside_a_frame(data: bytes, fault: str) -> None:
    reader = FrameReader()
    assert list(reader.feed(data)) == []
    with pytest.raises(FrameError, match=fault):
        reader.end()


def test_good_frames_before_a_bad_one_are_read() -> None:
    reader, found = FrameReader(), list[JSONObject]()
    data = encode_frame({"n": 1}) + encode_frame({"n": 2}) + b"\xff" * 4
    with pytest.raises(FrameError):
        found.extend(reader.feed(data))
    assert found == [{"n": 1}, {"n": 2}]


def test_bytes_are_taken_even_if_nobody_iterates() -> None:
    reader, data = FrameReader(), encode_frame({"n": 1})
    reader.feed(data[:5])
    assert list(reader.feed(data[5:])) == [{"n": 1}]


def test_a_stranger_gets_less_room_until_it_is_known() -> None:
    big = encode_frame({"card": "x" * 100})
    with pytest.raises(FrameError, match="from 2 to 64"):
        list(FrameReader(64).feed(big))
    reader = FrameReader(64)
    for _ in reader.feed(encode_frame({}) + big):
        reader.max_bytes = MAX_FRAME_BYTES
    assert list(reader.feed(b"")) == []


def test_a_frame_of_the_largest_size_and_one_byte_more() -> None:
    fits = {"x": "a" * (MAX_FRAME_BYTES - len(orjson.dumps({"x": ""})))}
    data = encode_frame(fits)
    assert len(data) == 4 + MAX_FRAME_BYTES
    reader = FrameReader()
    assert list(reader.feed(data[:1000])) == []
    assert list(reader.feed(data[1000:])) == [fits]
    with pytest.raises(FrameError, match="16777217 bytes is over 16777216"):
        encode_frame({"x": fits["x"] + "a"})
