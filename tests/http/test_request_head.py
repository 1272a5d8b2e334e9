"""A plain head is read as h11 reads it, or left to it."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilert_stream.http.request_head import RequestHead, head_of, plain_head

DIFFERENTIAL = settings(max_examples=1000, deadline=None, derandomize=True)
SOAK = settings(DIFFERENTIAL, max_examples=20_000, derandomize=False)


def by_h11(data: bytes) -> RequestHead:
    """:raises h11.RemoteProtocolError: it refuses the head."""
    conn = h11.Connection(h11.SERVER, max_incomplete_event_size=len(data))
    conn.receive_data(data)
    event = conn.next_event()
    assert isinstance(event, h11.Request)
    assert conn.trailing_data == (b"", False)
    assert not conn.they_are_waiting_for_100_continue
    return head_of(event)


def agree(data: bytes) -> None:
    head = plain_head(data)
    if head is not None:
        assert head == by_h11(data)


PLAIN_LINES = st.sampled_from(
    [
        b"content-length:05",
        b"Connection: close",
        b"Connection: Keep-Alive",
        b"Accept: \t a,\tb \t",
        b"X-Empty:",
        b"x-%d-!#$&'*+.^_`|~: \"(),/:;<=>?@[\\]{}",
    ]
)
LINES = st.sampled_from(
    [
        b"Host: x",
        b"Content-Length: 5",
        b"Content-Length: 5, 5",
        b"Content-Length: +5",
        b"Content-Length: 123456789012345678901",
        b"Connection: keep-alive, close",
        b"Connection: upgrade",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"Transfer-Encoding: chunked",
        b"X-Latin: caf\xe9",
        b" folded",
        b"x y: z",
        b"x : z",
        b": z",
        b"no colon",
        b"",
    ]
)
REQUEST_LINES = st.sampled_from(
    [
        b"GET / HTTP/1.1",
        b"POST /v1/chat/completions?a=b HTTP/1.1",
        b"HEAD / HTTP/1.1",
        b"get / HTTP/1.1",
        b"GET / HTTP/1.0",
        b"GET http://x/ HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET  / HTTP/1.1",
        b"GET /a b HTTP/1.1",
        b"GET /\xe9 HTTP/1.1",
        b"GET /",
    ]
)
END = b"\r\n\r\n"


def one(data: bytes) -> bytes:
    """Its first head; no head has a blank line but at its end."""
    return data.partition(END)[0] + END


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """A plain head, or one with a few lines that are not."""
    lines = [draw(st.one_of(st.just(b"GET / HTTP/1.1"), REQUEST_LINES))]
    lines += draw(st.sampled_from([[b"Host: x"], [b"hOST:x"], []]))
    lines += draw(st.lists(PLAIN_LINES, max_size=3, unique=True))
    lines += draw(st.one_of(st.just([]), st.lists(LINES, max_size=2)))
    return one(b"\r\n".join(lines))


ODD_BYTES = st.sampled_from([b"\r", b"\n", b"\r\n", b"\x00", b" ", b"\t", b":", b"\x0b", b"\xff"])


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A plain head with a few bytes put in or taken out."""
    data = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nAccept: a, b\r\nX-A: b"
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        until = draw(st.integers(at, min(at + 3, len(data))))
        put = draw(st.one_of(st.just(b""), ODD_BYTES, st.binary(min_size=1, max_size=2)))
        data = data[:at] + put + data[until:]
    return one(data)


@DIFFERENTIAL
@given(data=heads())
def test_any_lines(data: bytes) -> None:
    agree(data)


@DIFFERENTIAL
@given(data=mutated())
def test_any_bytes_changed(data: bytes) -> None:
    agree(data)


@pytest.mark.soak
@SOAK
@given(data=st.one_of(heads(), mutated()))
def test_any_head_for_long(data: bytes) -> None:
    agree(data)


def test_what_is_read() -> None:
    data = (
        b"POST /v1/chat/completions?a=%20b HTTP/1.1\r\nHost: x:80\r\nUser-Agent:OpenAI/Python 2\r\n"
        b"X-Empty: \t\r\nACCEPT: \ta, b \r\nConnection: Close\r\nContent-Length: 0021\r\n\r\n"
    )
    assert plain_head(data) == (
        b"POST",
        b"/v1/chat/completions?a=%20b",
        b"1.1",
        [
            (b"host", b"x:80"),
            (b"user-agent", b"OpenAI/Python 2"),
            (b"x-empty", b""),
            (b"accept", b"a, b"),
            (b"connection", b"Close"),
            (b"content-length", b"0021"),
        ],
        True,
        True,
        21,
    )
    agree(data)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("end", ["", "Connection: keep-alive\r\n", "Connection: close\r\n"])
def test_what_is_plain(method: str, end: str) -> None:
    data = f"{method} / HTTP/1.1\r\nHost: x\r\n{end}\r\n".encode()
    head = plain_head(data)
    assert head is not None
    assert head == by_h11(data)
    assert (head.plain, head.closes, head.length) == (True, "close" in end, 0)


@pytest.mark.parametrize("lines", [(b"close", b"keep-alive"), (b"keep-alive", b"close")])
def test_a_close_in_any_of_two_lines_closes(lines: tuple[bytes, bytes]) -> None:
    data = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: %b\r\nConnection: %b\r\n\r\n" % lines
    assert plain_head(data) is None
    head = by_h11(data)
    assert (head.plain, head.closes) == (True, True)


GET = b"GET / HTTP/1.1\r\n"
HOST = GET + b"Host: x\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PROPFIND / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        HOST + b"Transfer-Encoding: chunked\r\n\r\n",
        HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        HOST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
        HOST + b"Content-Length: 5, 5\r\n\r\n",
        HOST + b"Expect: 100-continue\r\n\r\n",
        HOST + b"Expect: nothing\r\n\r\n",
        HOST + b"Upgrade: h2c\r\n\r\n",
        HOST + b"Connection: upgrade\r\n\r\n",
        HOST + b"Connection:\r\n\r\n",
        HOST + b"Cookie: a\r\nCookie: b\r\n\r\n",
        HOST + b"X-Latin: caf\xe9\r\n\r\n",
        HOST + b"X-Control: \x01\r\n\r\n",
        HOST + b"X-Folded: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\r\n\r\n",
        GET + b"Host: x\nAccept: a\r\n\r\n",
    ],
)
def test_what_is_left_to_h11(data: bytes) -> None:
    assert plain_head(data) is None
    conn = h11.Connection(h11.SERVER)
    conn.receive_data(data)
    assert isinstance(conn.next_event(), h11.Request)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a\tb HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / http/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        GET + b"Accept: a\r\n\r\n",
        HOST + b"Host: x\r\n\r\n",
        HOST + b"Content-Length: +5\r\n\r\n",
        HOST + b"Content-Length: -5\r\n\r\n",
        HOST + b"Content-Length: 0x5\r\n\r\n",
        HOST + b"Content-Length: 5 5\r\n\r\n",
        HOST + b"Content-Length:\r\n\r\n",
        HOST + b"Content-Length: \xb2\r\n\r\n",
        HOST + b"Content-Length: 123456789012345678901\r\n\r\n",
        HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HOST + b"Transfer-Encoding: gzip\r\n\r\n",
        GET + b" Host: x\r\n\r\n",
        HOST + b"X-Nul: a\x00b\r\n\r\n",
        HOST + b"X-Return: a\rb\r\n\r\n",
        HOST + b"X-Feed: a\x0cb\r\n\r\n",
        HOST + b"X-Space : a\r\n\r\n",
        HOST + b"X Space: a\r\n\r\n",
        HOST + b"X-\xe9: a\r\n\r\n",
        HOST + b": a\r\n\r\n",
        HOST + b"no colon\r\n\r\n",
    ],
)
def test_what_h11_refuses(data: bytes) -> None:
    assert plain_head(data) is None
    with pytest.raises(h11.RemoteProtocolError):
        by_h11(data)


@pytest.mark.parametrize("data", [b"", HOST, HOST + b"\r\n\r\n", HOST + b"\r\nab", b"ab" + HOST])
def test_it_must_be_one_head_and_no_more(data: bytes) -> None:
    assert plain_head(data) is None


LONG = 64 * 1024


@pytest.mark.parametrize(
    "data",
    [
        HOST + b"a" * LONG + END,
        HOST + b"X: " + b"a b: " * (LONG // 5) + b"\x00" + END,
        HOST + b"X:" + b" " * LONG + b"\x00" + END,
        HOST + b"X: y\r\n" * (LONG // 6) + b"\x00" + END,
        b"GET /" + b"a" * LONG + END,
    ],
)
def test_a_long_head_that_does_not_fit(data: bytes) -> None:
    """It is gone through once: a look at it from every byte on would not end."""
    assert plain_head(data) is None


def test_a_long_head_that_fits() -> None:
    data = HOST + b"X: " + b"a " * (LONG // 2) + END
    assert plain_head(data) == by_h11(data)
