"""One JSON line a request: requests that end in, lines to a file or to stdout.

A line is one unbuffered write to a file opened for appending. That is a copy into the kernel's
page cache, some microseconds, which does not wait for the disk; the lines of several processes
never mix, and nothing is lost with the process. Where a slow reader of stdout could fill a pipe,
give a file.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from ..errors import Cancelled, ConfigError
from ..openai.encoding import dumps
from .timeline import Timeline, phase_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..errors import TilertStreamError
    from ..events import Finished
    from ..scope import RequestScope
    from .record import RequestRecord

__all__ = ("RequestLog", "open_request_log")

STDOUT: Final = "-"
APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def _now() -> datetime:
    return datetime.now(UTC)


class RequestLog:
    """An ``Observer`` that writes.

    :param write: takes a whole line; what it raises is the caller's to log.
    :param now: the time of a line.
    """

    def __init__(
        self, write: Callable[[bytes], object], *, now: Callable[[], datetime] = _now
    ) -> None:
        self._write = write
        self._now = now

    def began(self, scope: RequestScope) -> None:
        """Nothing: a request's line is written at its end."""

    def ended(self, scope: RequestScope, outcome: Finished) -> None:
        """Write its line."""
        record, error = scope.record, outcome.error
        timeline = Timeline.of(scope)
        line = self._head(scope.request.id, record, error)
        line |= {
            "phase": phase_of(scope),
            "finish_reason": outcome.reason,
            "stop_reason": outcome.stop_reason,
            "prompt_tokens": scope.usage.prompt_tokens,
            "cached_tokens": scope.usage.cached_tokens,
            "completion_tokens": 0 if record is None else record.answer_tokens,
            "timeline_ms": timeline.milliseconds(),
        }
        self._write(dumps(line) + b"\n")

    def refused(self, record: RequestRecord, error: TilertStreamError) -> None:
        """Write the line of a request that never began; it has no timeline."""
        self._write(dumps(self._head(record.refused_as, record, error)) + b"\n")

    def _head(
        self, request_id: str | None, record: RequestRecord | None, error: TilertStreamError | None
    ) -> dict[str, object]:
        line: dict[str, object] = {
            "time": self._now().isoformat(timespec="milliseconds"),
            "id": request_id,
        }
        if record is not None:
            line |= {
                "client_id": record.client_id,
                "endpoint": record.endpoint,
                "model": record.model,
                "stream": record.stream,
            }
        line["status"] = _status(record, error)
        line["error"] = None if error is None else type(error).code
        return line


def _status(record: RequestRecord | None, error: TilertStreamError | None) -> int | None:
    """What has left; where nothing has, what the error's answer says; 499 if nobody reads it."""
    if record is None or record.endpoint is None:
        return None
    if record.status is not None:
        return record.status
    return 499 if isinstance(error, Cancelled) else None if error is None else error.status


def open_request_log(path: str) -> RequestLog:
    """The log that goes to ``path``, which is made if it is not there; ``-`` is stdout.

    :raises ~tilert_stream.errors.ConfigError: it cannot be written.
    """
    try:
        # No file object: the descriptor stays open for as long as the process lives.
        descriptor = sys.stdout.fileno() if path == STDOUT else os.open(path, APPEND, 0o644)
    except OSError as error:
        raise ConfigError(
            f"request_log is {path!r}: {error.strerror or error}. Give a file that can be written,"
            " or - for stdout.",
            param="request_log",
        ) from error
    return RequestLog(partial(os.write, descriptor))
