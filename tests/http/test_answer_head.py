"""Whatever an app says of its answer, a client reads what h11 alone would have written."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.http.answer_head import AnswerHead
from tilert_stream.http.refusal import REASONS

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
    status=st.sampled_from([200, 201, 404, 503]),
    fields=st.lists(st.tuples(names, values), max_size=4),
    close=st.booleans(),
)
def test_a_head_of_chunks_is_what_h11_would_write_or_left_to_it(
    status: int, fields: Fields, close: bool
) -> None:
    fields = [(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT"), *fields]
    try:
        head = AnswerHead({"type": "http.response.start", "status": status, "headers": fields})
    except h11.LocalProtocolError:
        return
    quick = head.chunked(close=close)
    of_the_connection = {name.lower() for name, _ in fields} & {b"content-length", b"connection"}
    if of_the_connection:
        assert quick is None
    elif quick is not None:
        assert read(quick) == read(written_by_h11(status, fields, b"1.1", close=close))


def test_a_plain_head_of_chunks_needs_no_h11() -> None:
    fields = [(b"date", b"x"), (b"content-type", b"text/event-stream")]
    head = AnswerHead({"type": "http.response.start", "status": 200, "headers": fields})
    begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
    plain = b"date: x\r\ncontent-type: text/event-stream\r\n\r\n"
    assert head.chunked(close=False) == begin + plain
    assert head.chunked(close=True) == begin + b"Connection: close\r\n" + plain


def test_a_line_end_in_a_value_makes_no_field() -> None:
    with pytest.raises(h11.LocalProtocolError):
        AnswerHead(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"x-request-id", b"a\r\nset-cookie: b")],
            }
        )
