"""One line a request: who asked what, what was answered, how long it took."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from os import urandom

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
    request: str = "-"
    """Method, target and version, as received."""
    request_id: str = "-"
    """``x-request-id`` of the answer, else the app's own, else that of the request."""
    named: bool = False
    """Whether the app has given its own."""
    status: int = CLIENT_GONE
    sent: int = 0
    """Bytes of body."""
    ending: str = "complete"
    """``complete``, ``gone`` (the client left), ``cut`` (by us) or ``refused`` (never an app's)."""
    began: float = field(default_factory=time.perf_counter)

    def name(self, request_id: str) -> None:
        """Say what the app calls the request."""
        self.request_id = request_id
        self.named = True

    def name_refusal(self) -> str:
        """The id of an answer of the server's own: the app's, else a fresh one.

        Never the client's, which may be anything, and the same for many requests.
        """
        if not (self.named and _HEADER_VALUE.fullmatch(self.request_id)):
            self.request_id = urandom(16).hex()
        return self.request_id

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
