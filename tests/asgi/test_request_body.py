"""Where a request's body is read: on the event loop, or in a thread where that would hold it up."""

from __future__ import annotations

import threading

import orjson
import pytest

from tilert_stream.asgi.request_body import PARSED_IN_A_THREAD, parse_body

IDS = orjson.dumps({"prompt": [32_000 + place % 999 for place in range(8192)]})
MANY_IDS = orjson.dumps({"prompt": [32_000 + place % 999 for place in range(40_000)]})
TEXT = orjson.dumps({"prompt": "word " * (PARSED_IN_A_THREAD // 4)})
DIGITS = orjson.dumps({"prompt": "x" * PARSED_IN_A_THREAD + "7" * 100})


@pytest.mark.parametrize(
    ("body", "in_a_thread"),
    [(b"{}", False), (IDS, False), (MANY_IDS, True), (TEXT, True), (DIGITS, True)],
)
async def test_where_a_body_is_read(body: bytes, in_a_thread: bool) -> None:
    here = threading.get_ident()
    assert len(body) > PARSED_IN_A_THREAD or body == b"{}"

    def parse(body: bytes, added: int) -> tuple[int, int]:
        return threading.get_ident(), len(body) + added

    where, length = await parse_body(parse, body, 1)
    assert length == len(body) + 1
    assert (where != here) is in_a_thread
