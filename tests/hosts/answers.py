"""An answer as an HTTP client reads it: bytes in, its parts out.

h11 does the reading; it is as strict as a client's library may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h11
import orjson

from tests.leaving import Client


@dataclass(frozen=True)
class Answer:
    """What a client makes of it."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    complete: bool
    """False: the client counts it as a failure."""

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        return [event.removeprefix(b"data: ") for event in self.body.split(b"\n\n") if event]

    @property
    def text(self) -> str:
        """The streamed text."""
        chunks = [orjson.loads(event) for event in self.events if event != b"[DONE]"]
        return "".join(choice["text"] for chunk in chunks for choice in chunk.get("choices", ()))


def read(raw: bytes) -> Answer:
    """The answer to a POST, behind whose last byte the connection was closed."""
    answer = _parse(raw, closed=True)
    assert answer is not None, raw
    return answer


async def read_one(client: Client) -> Answer:
    """The next answer on a connection that stays open."""
    raw = await client.read()
    while (answer := _parse(raw, closed=False)) is None:
        data = await client.read()
        assert data, f"the end came behind {raw!r}"
        raw += data
    return answer


def _parse(raw: bytes, *, closed: bool) -> Answer | None:
    """None: the answer goes on."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    if closed:
        connection.receive_data(b"")
    head: h11.Response | None = None
    body = b""
    complete = False
    try:
        while not complete:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            complete = isinstance(event, h11.EndOfMessage)
    except h11.RemoteProtocolError:
        complete = False
    assert head is not None, raw
    return Answer(head.status_code, dict(head.headers), body, complete)
