"""The servers that are measured: in one process, and a router before its nodes; their counts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COUNTER = "tilert_stream_generation_tokens_total"
ROOT = Path(__file__).resolve().parents[2]
TINY_GLM5 = ROOT / "engine" / "tilert_engine" / "glm" / "tiny_glm5"
PATIENCE = 30
"""Seconds; a node counts an answer when it has ended, which the router does not wait for."""


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
    return text


def _counted(url: str) -> int:
    """Tokens of answers, by the metrics of one process."""
    found = re.findall(rf"^{COUNTER}{{.*}} ([0-9.e+]+)$", _get(f"{url}/metrics"), re.MULTILINE)
    return int(sum(map(float, found)))


@dataclass(frozen=True)
class MeasuredServer:
    url: str
    model: str
    engines: tuple[str, ...]
    """Where the processes that decode answer."""

    def sent(self) -> int:
        """Tokens of answers, by the process that clients talk to."""
        return _counted(self.url)

    def made(self) -> int:
        """Tokens of answers, by the processes that decode: the first one, prefill's, among them."""
        return sum(map(_counted, self.engines))


@contextmanager
def server(layout: str, engine: str, log: Path) -> Generator[MeasuredServer]:
    """A server until the block ends.

    :param layout: ``one-process`` or ``router``.
    :param engine: ``tiny-glm5`` or ``scripted``.
    """
    scripted = engine == "scripted"
    split = layout == "router"
    module = "tilert_stream.serve.local_cluster" if split else "tilert_stream.serve"
    options = ["--port=0", "--engine=scripted"] if scripted else ["--port=0", "--threads=1"]
    options.append(f"--model={'bytes' if scripted else engine}")
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *options],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"Serving \S+ at (http://127\.0\.0\.1:\d+)/v1\n", line)
        assert found is not None, line + log.read_text()
        yield MeasuredServer(found[1], engine, _engines(found[1], split))
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _engines(url: str, split: bool) -> tuple[str, ...]:
    if not split:
        return (url,)
    nodes = json.loads(_get(f"{url}/pool_status"))["decode"]
    # host:control:http
    return tuple(f"http://{host}:{port}" for host, _, port in (n["name"].split(":") for n in nodes))


def wait_for_made(server: MeasuredServer, before: int, tokens: int) -> int:
    """What the engines have made since ``before``: ``tokens``, or what it is when patience ends."""
    deadline = time.monotonic() + PATIENCE
    while True:
        made = server.made() - before
        if made == tokens or time.monotonic() > deadline:
            return made
