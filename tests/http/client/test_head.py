"""Plain heads that are read without h11: the same as h11's, whatever else comes."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.http.client.head import (
    REMEMBERED,
    REMEMBERED_BYTES,
    Head,
    make_head,
    read_plain_head,
)

LIMIT = 64 * 1024


def by_h11(data: bytes, *, bodiless: bool) -> Head | None:
    """What h11 makes of it; None: it is broken, or not whole."""
    parser = h11.Connection(h11.CLIENT)
    method = "HEAD" if bodiless else "GET"
    parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(data)
    try:
        event = parser.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.Response):
        return None
    return make_head(
        event.status_code,
        event.http_version,
        tuple(event.headers),
        parser.trailing_data[0],
        bodiless=bodiless,
    )


def facts(head: Head) -> tuple[object, ...]:
    body = head.body
    return (
        head._replace(body=body.__class__),  # type: ignore[arg-type]  # compared as a class: readers have no equality
        body.complete,
        body.clean,
        body.feed(b"5\r\nhello\r\n0\r\n\r\n" if not body.complete else b""),
        body.complete,
    )


NAMES = st.sampled_from(
    [
        b"Content-Length",
        b"content-length",
        b"Transfer-Encoding",
        b"Connection",
        b"X",
        b"d~te",
        b"S p",
    ]
) | st.binary(max_size=6)
VALUES = st.sampled_from(
    [b"5", b"05", b"+5", b"chunked", b"Chunked", b"gzip", b"close", b"", b"a b"]
)
FIELDS = st.tuples(
    NAMES, st.sampled_from([b":", b": ", b" :", b":\t "]), VALUES | st.binary(max_size=8)
)
FIRST = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 204",
        b"HTTP/1.1 404 ",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 100 C",
        b"HTTP/1.1 999 X",
        b"http/1.1 200 OK",
        b"HTTP/1.1  200",
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 \xff",
    ]
) | st.binary(max_size=12)
ENDS = st.sampled_from([b"\r\n", b"\n", b"\r\n ", b"\r"])


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    end = b"\r\n" if draw(st.booleans()) else draw(ENDS)
    lines = [draw(FIRST), *(b"".join(field) for field in draw(st.lists(FIELDS, max_size=4)))]
    return end.join(lines) + end + b"\r\n" + draw(st.binary(max_size=12))


@given(heads(), st.booleans())
def test_what_is_read_is_what_h11_reads(data: bytes, bodiless: bool) -> None:
    head = read_plain_head(data, limit=LIMIT, bodiless=bodiless)
    if head is not None:
        expected = by_h11(data, bodiless=bodiless)
        assert expected is not None
        assert facts(head) == facts(expected)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nDate: now\r\n\r\nhel", id="length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n", id="chunked"),
        pytest.param(b"HTTP/1.1 503 Busy\r\nX: a, b\t c \r\nempty:\r\n\r\n", id="close"),
        pytest.param(b"HTTP/1.1 200\r\n\r\n", id="nothing but a status"),
    ],
)
def test_a_plain_head_needs_no_h11_and_one_that_is_not_whole_does(head: bytes) -> None:
    read = read_plain_head(head, limit=LIMIT, bodiless=False)
    expected = by_h11(head, bodiless=False)
    assert read is not None
    assert expected is not None
    assert facts(read) == facts(expected)
    for cut in range(head.index(b"\r\n\r\n") + 3):
        assert read_plain_head(head[:cut], limit=LIMIT, bodiless=False) is None


def test_a_head_over_the_limit_is_h11s() -> None:
    head = b"HTTP/1.1 200 OK\r\nX: %b\r\n\r\n" % (b"x" * 100)
    assert read_plain_head(head, limit=200, bodiless=False) is not None
    assert read_plain_head(head, limit=100, bodiless=False) is None


def test_two_answers_with_the_same_head_have_a_body_each() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    one, other = (read_plain_head(head + left, limit=LIMIT, bodiless=False) for left in (b"", b"x"))
    assert one is not None
    assert other is not None
    assert one.body.feed(b"ok") == b"ok"
    assert (one.body.complete, other.body.complete) == (True, False)
    assert (one.left, other.left) == (b"", b"x")


@pytest.mark.parametrize("size", [10, 2 * REMEMBERED_BYTES])
def test_the_same_head_says_something_else_of_another_request_or_status(size: int) -> None:
    fields = b"\r\nContent-Length: 2\r\nX: %b\r\n\r\n" % (b"x" * size)
    facts_of = [
        facts(head)
        for _ in range(2)
        for first in (b"HTTP/1.1 200 OK", b"HTTP/1.1 304 OK", b"HTTP/1.1 204 OK")
        for bodiless in (False, True)
        if (head := read_plain_head(first + fields, limit=LIMIT, bodiless=bodiless))
    ]
    assert len(facts_of) == 12
    assert facts_of[:6] == facts_of[6:]
    assert [fact[1] for fact in facts_of[:6]] == [False, True, True, True, True, True]


def test_what_a_head_says_of_its_connection_is_not_mixed_up() -> None:
    kept = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    closed = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
    for _ in range(2):
        for data, keep_alive in ((kept, True), (closed, False)):
            head = read_plain_head(data, limit=LIMIT, bodiless=False)
            assert head is not None
            assert head.keep_alive == keep_alive


def test_no_more_heads_are_remembered_than_have_room() -> None:
    for number in range(2 * REMEMBERED):
        data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % number
        head = read_plain_head(data, limit=LIMIT, bodiless=False)
        assert head is not None
        assert head.headers == ((b"content-length", b"%d" % number),)
