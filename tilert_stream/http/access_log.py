"""One line a request: who asked what, what was answered, how long it took."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from os import urandom
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answer_head import AnswerHead
    from .request_head import RequestHead

__all__ = ("AccessRecord", "logger", "printable")

logger = logging.getLogger("tilert_stream.access")

CLIENT_GONE = 499
"""The status of an answer that nobody waited for (nginx's number; never sent)."""

_HEADER_VALUE = re.compile(r"[!-~]+")
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


def printable(text: str) -> str:
    r"""Write control characters as ``\x1b``: a log line must not move a terminal's cursor."""
    return text.translate(_CONTROL)


@dataclass(slots=True)
class AccessRecord:
    """What is known of one request; filled in while it is answered."""

    client: str
    head: RequestHead | None = None
    """None while none has come that is valid."""
    answer: AnswerHead | None = None
    """None while the app has begun none."""
    given_id: str | None = None
    """What the app calls it, else, of one that the server refuses, the server."""
    status: int = CLIENT_GONE
    sent: int = 0
    """Bytes of body."""
    ending: str = "complete"
    """``complete``, ``gone`` (the client left), ``cut`` (by us) or ``refused`` (never an app's)."""
    began: float = field(default_factory=time.perf_counter)

    def take(self, head: RequestHead) -> None:
        """Its head has come: from now on it is being answered."""
        self.head = head
        self.began = time.perf_counter()

    @property
    def request(self) -> str:
        """Method, target and version, as received."""
        if self.head is None:
            return "-"
        method, target, version, *_ = self.head
        return (b"%b %b HTTP/%b" % (method, target, version)).decode("latin-1")

    @property
    def request_id(self) -> str:
        """``x-request-id`` of the answer, else ``given_id``, else that of the request."""
        found = self.given_id if self.answer is None else self.answer.request_id or self.given_id
        if found is not None:
            return found
        found = "-"
        for name, value in () if self.head is None else self.head.headers:
            if name == b"x-request-id":
                found = value.decode("latin-1")
        return found

    def name(self, request_id: str) -> None:
        """Say what the app calls the request."""
        self.given_id = request_id

    def name_refusal(self) -> str:
        """The id of an answer of the server's own: the app's, else a fresh one.

        Never the client's, which may be anything, and the same for many requests.
        """
        self.answer = None
        if self.given_id is None or not _HEADER_VALUE.fullmatch(self.given_id):
            self.given_id = urandom(16).hex()
        return self.given_id

    def write(self) -> None:
        """Log the line, at level info."""
        if logger.isEnabledFor(logging.INFO):
            logger.info(
                '%s "%s" %d %d B %.1f ms %s %s',
                self.client,
                self.request,
                self.status,
                self.sent,
                (time.perf_counter() - self.began) * 1e3,
                self.ending,
                printable(self.request_id),
            )
