"""Four processes from one command: they answer, and end together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import orjson

COMMAND = [sys.executable, "-m", "tilert_stream.serve.local_cluster"]
BODY = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5}


@contextmanager
def cluster(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A running cluster, and its router's URL."""
    process = subprocess.Popen(
        [*COMMAND, "--engine", "scripted", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"Serving scripted at (http://127\.0\.0\.1:\d+)/v1\n", line)
        assert found is not None, line
        yield process, found[1]
    finally:
        process.terminate()
        process.wait(timeout=60)
        if process.stdout is not None:
            process.stdout.close()


def get(url: str, body: object | None = None) -> Any:
    data = None if body is None else orjson.dumps(body)
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return orjson.loads(response.read())


def test_one_command_runs_a_router_a_prefill_and_two_decode_nodes() -> None:
    with cluster("--transport", "tcp") as (process, url):
        answer = get(f"{url}/v1/chat/completions", BODY)
        assert answer["choices"][0]["message"]["content"] == "abcab"
        status = get(f"{url}/pool_status")
        assert [len(status["prefill"]), len(status["decode"])] == [1, 2]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
