"""A generated answer, streamed or not, read as leniently as clients do.

What is wrong with its form is the business of the checks that look at the bytes; the others only
want its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .json_view import at, items, parsed, text_at, whole

if TYPE_CHECKING:
    from .exchange import Exchange

__all__ = ("DONE", "Answer", "error_of", "events_of", "said")

DONE: Final = b"[DONE]"
_BLANK: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and what it says."""

    exchange: Exchange
    chunks: tuple[object, ...]
    """The JSON of each event of a stream; of a plain answer, the body."""
    streamed: bool

    @classmethod
    def of(cls, exchange: Exchange, *, streamed: bool) -> Answer:
        """Read an exchange that has ended well."""
        if not streamed:
            return cls(exchange, (parsed(exchange.body),), streamed=False)
        found = [parsed(data) for data in events_of(exchange.body) if data != DONE]
        return cls(exchange, tuple(found), streamed=True)

    @property
    def choices(self) -> list[object]:
        """The first choice of each chunk that has one."""
        found = [items(chunk, "choices") for chunk in self.chunks]
        return [
            choice for choices in found for choice in choices if at(choice, "index") in (0, None)
        ]

    @property
    def text(self) -> str:
        """Everything that the first choice says: reasoning, then content."""
        return "".join(said(choice) for choice in self.choices)

    @property
    def finish(self) -> str:
        """The first finish reason; empty where there is none."""
        reasons = [text_at(choice, "finish_reason") for choice in self.choices]
        return next((reason for reason in reasons if reason), "")

    @property
    def usage(self) -> object:
        """The last usage object; None where there is none."""
        return next((u for u in (at(c, "usage") for c in reversed(self.chunks)) if u), None)

    def tokens(self, name: str = "completion_tokens") -> int | None:
        """A number of the usage object."""
        found = at(self.usage, name)
        return found if isinstance(found, int) and whole(found) else None


def said(choice: object) -> str:
    """The text of one choice of a chunk or an answer."""
    text = at(choice, "text")
    if isinstance(text, str):
        return text
    part = at(choice, "delta") if at(choice, "delta") is not None else at(choice, "message")
    thought = text_at(part, "reasoning_content") or text_at(part, "reasoning")
    return thought + text_at(part, "content")


def events_of(body: bytes | bytearray) -> list[bytes]:
    """The data of each event, by the rules of the HTML standard for event streams."""
    found: list[bytes] = []
    for block in _BLANK.split(body):
        lines = [line[5:].removeprefix(b" ") for line in block.splitlines() if line[:5] == b"data:"]
        if lines:
            found.append(b"\n".join(lines))
    return found


def error_of(exchange: Exchange) -> object:
    """The nested error object; None where there is none."""
    return at(parsed(exchange.body), "error")
