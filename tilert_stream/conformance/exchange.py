"""One request and every byte of its answer, with the times at which they came."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ("Ending", "Exchange", "Leave", "Read", "Request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent. The wire adds Host, Content-Length and the key to the headers."""

    path: str
    method: str = "POST"
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    http10: bool = False
    trickle: bool = False
    """Whether each byte of the body is a write of its own."""
    keep_alive: bool = False
    """Whether the connection is wanted for a further request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """When this client closes its connection, though the answer is not complete."""

    after: str
    """``half-body``, ``request`` (nothing is read) or ``event`` (the first one is read)."""
    reset: bool = False
    """RST in place of FIN."""


class Ending(StrEnum):
    """How an answer ended."""

    COMPLETE = "complete"
    CUT = "cut before its end"
    MALFORMED = "not HTTP/1.1"
    TIMEOUT = "not complete within the time limit"
    TOO_LONG = "longer than the limit"
    REFUSED = "no connection"
    LEFT = "left by the client"


@dataclass(frozen=True, slots=True)
class Read:
    """One read of the socket."""

    at: float
    """Seconds since the request was sent."""
    body: int
    """Bytes of the body that were there after it."""


@dataclass(slots=True)
class Exchange:
    """A request and what came back."""

    request: Request
    status: int = 0
    """0 where there was no answer."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names in lower case, as they came."""
    raw: bytearray = field(default_factory=bytearray)
    """Every byte from the socket, chunk sizes too."""
    body: bytearray = field(default_factory=bytearray)
    reads: list[Read] = field(default_factory=list[Read])
    ending: Ending = Ending.CUT
    fault: str = ""
    """What of the answer is no HTTP, if something is."""

    def header(self, name: str) -> str | None:
        """A header's value, by its name in lower case; several are joined as RFC 9110 says."""
        values = [value for given, value in self.headers if given == name]
        return ", ".join(values) if values else None

    def time_of(self, offset: int) -> float:
        """Seconds after which the byte of the body at ``offset`` was there."""
        return next((read.at for read in self.reads if read.body > offset), 0.0)
