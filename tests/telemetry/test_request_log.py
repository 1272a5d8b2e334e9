from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.telemetry.played import Played, played, whole
from tilert_stream.errors import (
    Cancelled,
    ConfigError,
    EngineFault,
    InvalidRequest,
    TilertStreamError,
)
from tilert_stream.events import Finished, PromptUsage
from tilert_stream.lifecycle import State
from tilert_stream.telemetry.record import RequestRecord
from tilert_stream.telemetry.request_log import RequestLog, open_request_log
from tilert_stream.testing import make_request

NOON = datetime(2027, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)


def record(**fields: Any) -> RequestRecord:
    defaults: dict[str, Any] = {"endpoint": "/v1/completions", "model": "small", "stream": True}
    return RequestRecord(**(defaults | fields))


def line(request: Played, outcome: Finished) -> dict[str, Any]:
    written: list[bytes] = []
    log = RequestLog(written.append, now=lambda: NOON)
    log.began(request.scope)
    log.ended(request.scope, outcome)
    (text,) = written
    assert text.endswith(b"}\n")
    assert text.count(b"\n") == 1
    parsed: dict[str, Any] = orjson.loads(text)
    return parsed


def test_a_whole_request_is_one_line() -> None:
    with played(make_request(id="c0ffee"), record=record(client_id="mine")) as request:
        whole(request)
        request.record.status = 200
        request.scope.usage = PromptUsage(32, cached_tokens=16)
        logged = line(request, Finished("stop", stop_reason="\n\n"))
    assert logged == {
        "time": "2027-01-02T12:00:00.123+00:00",
        "id": "c0ffee",
        "client_id": "mine",
        "endpoint": "/v1/completions",
        "model": "small",
        "stream": True,
        "status": 200,
        "error": None,
        "phase": "decoding",
        "finish_reason": "stop",
        "stop_reason": "\n\n",
        "prompt_tokens": 32,
        "cached_tokens": 16,
        "completion_tokens": 7,
        "timeline_ms": {
            "queue": 500.0,
            "prefill": 250.0,
            "first_token": 750.0,
            "kv_import": 125.0,
            "decode": 875.0,
            "total": 2000.0,
        },
    }


@pytest.mark.parametrize(
    ("fields", "error", "status"),
    [
        ({}, EngineFault("no"), 500),
        ({"status": 200}, EngineFault("cut in the middle"), 200),
        ({}, Cancelled("gone"), 499),
        ({"status": 200}, Cancelled("gone in the middle"), 200),
        ({"endpoint": None}, EngineFault("without HTTP"), None),
    ],
)
def test_the_status_is_what_has_left_or_would_have(
    fields: dict[str, Any], error: TilertStreamError, status: int | None
) -> None:
    with played(record=record(**fields)) as request:
        request.move(101.0, State.RESERVED)
        request.move(102.0, State.FAILED)
        logged = line(request, Finished("error", error=error))
    assert logged["status"] == status
    assert logged["error"] == error.code
    assert (logged["phase"], logged["completion_tokens"]) == ("reserved", 0)
    assert logged["timeline_ms"] == {"queue": 1000.0, "total": 2000.0}


def test_a_refused_request_has_the_id_of_its_answer() -> None:
    written: list[bytes] = []
    log = RequestLog(written.append, now=lambda: NOON)
    log.refused(RequestRecord("beef", endpoint="/v1/completions"), InvalidRequest("no"))
    assert orjson.loads(written[0]) == {
        "time": "2027-01-02T12:00:00.123+00:00",
        "id": "beef",
        "client_id": None,
        "endpoint": "/v1/completions",
        "model": None,
        "stream": None,
        "status": 400,
        "error": "invalid_value",
    }


def test_a_stop_string_cannot_forge_a_line() -> None:
    with played(record=record()) as request:
        whole(request)
        logged = line(request, Finished("stop", stop_reason='\n{"id": "forged"}\u2028'))
    assert logged["stop_reason"] == '\n{"id": "forged"}\u2028'


def test_the_time_is_now() -> None:
    written: list[bytes] = []
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    RequestLog(written.append).refused(record(), InvalidRequest("no"))
    assert before <= datetime.fromisoformat(orjson.loads(written[0])["time"]) <= datetime.now(UTC)


def test_a_file_is_appended_to_at_once(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("before\n", encoding="utf-8")
    log = open_request_log(str(path))
    log.refused(record(), InvalidRequest("no"))
    first, second = path.read_bytes().splitlines()
    assert first == b"before"
    assert orjson.loads(second)["error"] == "invalid_value"


def test_a_file_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "requests.jsonl"
    with pytest.raises(ConfigError, match=r"request_log is .* No such file") as caught:
        open_request_log(str(path))
    assert caught.value.param == "request_log"


def test_a_dash_is_stdout() -> None:
    script = (
        "from tilert_stream.errors import InvalidRequest\n"
        "from tilert_stream.telemetry.record import RequestRecord\n"
        "from tilert_stream.telemetry.request_log import open_request_log\n"
        "open_request_log('-').refused(RequestRecord('beef'), InvalidRequest('no'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=60
    )
    assert orjson.loads(done.stdout)["id"] == "beef"
