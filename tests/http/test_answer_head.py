"""Whatever an app says of its answer, a client reads what h11 alone would have written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.http.answer_head import AnswerHead
from tilert_stream.http.refusal import REASONS

if TYPE_CHECKING:
    from tilert_stream.http.framing import Framing

Fields = list[tuple[bytes, bytes]]

names = st.sampled_from(
    [
        b"content-type",
        b"X-Request-Id",
        b"date",
        b"content-length",
        b"connection",
        b"x y",
        b"",
        b"x:",
    ]
)
values = st.one_of(
    st.sampled_from([b"12", b"close", b"text/event-stream; charset=utf-8", b"", b" a", b"a\tb"]),
    st.binary(max_size=6),
    st.sampled_from([b"a\r\nset-cookie: b", b"a\nb", b"a\r", b"\x00", b"caf\xc3\xa9"]),
)


def a_server(version: bytes) -> h11.Connection:
    conn = h11.Connection(h11.SERVER)
    conn.receive_data(b"GET / HTTP/%b\r\nhost: x\r\n\r\n" % version)
    assert isinstance(conn.next_event(), h11.Request)
    return conn


def read(head: bytes) -> tuple[int, bytes, Fields]:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=b"GET", target=b"/", headers=[(b"host", b"x")]))
    client.receive_data(head)
    event = client.next_event()
    assert isinstance(event, h11.Response)
    return event.status_code, event.reason, sorted(event.headers)


def written(status: int, fields: Fields, version: bytes, *, close: bool) -> bytes:
    head = AnswerHead({"type": "http.response.start", "status": status, "headers": fields})
    return head.render(a_server(version), close=close)


def written_by_h11(status: int, fields: Fields, version: bytes, *, close: bool) -> bytes:
    h11.Response(status_code=status, headers=fields)  # what is wrong with them is told in any case
    if close:
        fields = [field for field in fields if field[0].lower() != b"connection"]
        fields.append((b"connection", b"close"))
    response = h11.Response(status_code=status, headers=fields, reason=REASONS.get(status, b""))
    return a_server(version).send(response) or b""


@given(
    status=st.sampled_from([200, 204, 304, 404, 503]),
    fields=st.lists(st.tuples(names, values), max_size=4),
    version=st.sampled_from([b"1.1", b"1.0"]),
    close=st.booleans(),
)
def test_a_head_is_what_h11_would_write(
    status: int, fields: Fields, version: bytes, close: bool
) -> None:
    fields = [(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT"), *fields]
    try:
        expected = read(written_by_h11(status, fields, version, close=close))
    except h11.LocalProtocolError:
        with pytest.raises(h11.LocalProtocolError):
            written(status, fields, version, close=close)
    else:
        assert read(written(status, fields, version, close=close)) == expected


@given(
    status=st.sampled_from([200, 201, 204, 404, 503]),
    fields=st.lists(st.tuples(names, values), max_size=4),
    close=st.booleans(),
)
def test_a_plain_head_is_what_h11_would_write_or_left_to_it(
    status: int, fields: Fields, close: bool
) -> None:
    fields = [(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT"), *fields]
    try:
        head = AnswerHead({"type": "http.response.start", "status": status, "headers": fields})
    except h11.LocalProtocolError:
        return
    plain = head.plain(head.framing(bodiless=False, chunks_allowed=True), close=close)
    if status == 204 or b"connection" in {name.lower() for name, _ in fields}:
        assert plain is None
    elif plain is not None:
        assert read(plain) == read(written_by_h11(status, fields, b"1.1", close=close))


@pytest.mark.parametrize(
    ("framing", "fields", "framed"),
    [
        ("chunked", [], b"Transfer-Encoding: chunked\r\n"),
        ("length", [(b"content-length", b"12")], b""),
    ],
)
def test_a_plain_head_needs_no_h11(framing: Framing, fields: Fields, framed: bytes) -> None:
    head = AnswerHead(
        {"type": "http.response.start", "status": 200, "headers": [(b"date", b"x"), *fields]}
    )
    plain = b"".join(b"%b: %b\r\n" % field for field in [(b"date", b"x"), *fields])
    assert head.plain(framing, close=False) == b"HTTP/1.1 200 OK\r\n" + framed + plain + b"\r\n"
    assert head.plain(framing, close=True) == (
        b"HTTP/1.1 200 OK\r\n" + framed + b"Connection: close\r\n" + plain + b"\r\n"
    )
    assert head.length == (12 if fields else None)


@pytest.mark.parametrize("lengths", [[b"5", b"5"], [b"5, 5"]])
def test_an_unusual_length_is_left_to_h11(lengths: list[bytes]) -> None:
    fields = [(b"content-length", length) for length in lengths]
    head = AnswerHead({"type": "http.response.start", "status": 200, "headers": fields})
    assert head.plain("length", close=False) is None


def test_a_line_end_in_a_value_makes_no_field() -> None:
    with pytest.raises(h11.LocalProtocolError):
        AnswerHead(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"x-request-id", b"a\r\nset-cookie: b")],
            }
        )
