"""The bytes that mocked nodes answer with, made once: a letter in, an HTTP chunk out.

Two wires: OpenAI's events, which the relay and the Rust routers pass on, and a decode node's lines
of token ids, which our router turns into such events itself.
"""

from __future__ import annotations

from typing import Final, Protocol

import orjson

from tilert_stream.events import Finished
from tilert_stream.openai.chunks import ChunkTemplate
from tilert_stream.openai.encoding import dump_text
from tilert_stream.openai.envelope import Envelope

from .orders import LETTERS, letter

__all__ = ("END", "EventFrames", "Frames", "LineFrames", "json_answer")

END: Final = b"0\r\n\r\n"
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"


class Frames(Protocol):
    """One wire. The last token, the end and the end of the body are one piece."""

    def first(self) -> bytes:
        """The head of the answer and token 0."""
        ...

    def token(self, index: int) -> bytes:
        """A token in between."""
        ...

    def last(self, index: int) -> bytes:
        """The last token, and all ends."""
        ...


class EventFrames:
    """OpenAI's: an event a token."""

    def __init__(self) -> None:
        template = ChunkTemplate(Envelope("0" * 32, "chat", "echo", stream=True))
        tail = template.text_tail + b"}\n\n"
        self._first = HEAD % b"text/event-stream" + _chunk(
            b"data: " + template.first_head + dump_text(letter(0)) + tail
        )
        self._events = [
            b"data: " + template.text_head + dump_text(letter(index)) + tail
            for index in range(LETTERS)
        ]
        self._tokens = list(map(_chunk, self._events))
        self._end = b"data: " + template.finish(Finished("length")) + b"}\n\ndata: [DONE]\n\n"

    def first(self) -> bytes:
        return self._first

    def token(self, index: int) -> bytes:
        return self._tokens[index % LETTERS]

    def last(self, index: int) -> bytes:
        return _chunk(self._events[index % LETTERS] + self._end) + END


class LineFrames:
    """TileRT's: a line of ids a token."""

    def __init__(self) -> None:
        self._lines = [b'{"t":[%d]}\n' % ord(letter(index)) for index in range(LETTERS)]
        self._tokens = list(map(_chunk, self._lines))
        self._first = HEAD % b"application/x-ndjson" + self._tokens[0]

    def first(self) -> bytes:
        return self._first

    def token(self, index: int) -> bytes:
        return self._tokens[index % LETTERS]

    def last(self, index: int) -> bytes:
        done = b'{"done":true,"n":%d,"finish_reason":"length"}\n' % (index + 1)
        return _chunk(self._lines[index % LETTERS] + done) + END


def json_answer(fields: object) -> bytes:
    """A whole answer of status 200."""
    body = orjson.dumps(fields)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)
