"""schemathesis, in an environment of its own, against a server on the scripted engine.

``make fuzz-openapi`` makes the environment and names its command.
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

COMMAND = "SCHEMATHESIS"
SEED = "SCHEMATHESIS_SEED"
FOLDER = Path(__file__).parent


class Exchange(NamedTuple):
    """One request that was made up, and its answer."""

    operation: str
    valid: bool
    """Whether it keeps to the schema."""
    status: int
    content: bytes


@dataclass
class Run:
    """What schemathesis says of it all."""

    returncode: int
    output: str
    summary: dict[str, Any]
    exchanges: list[Exchange]

    def valid(self, status: int) -> list[Exchange]:
        return [each for each in self.exchanges if each.valid and each.status == status]


@pytest.fixture(scope="session")
def base_url() -> Generator[str]:
    """A server until the session ends."""
    serve = [sys.executable, str(FOLDER / "serve.py")]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def run(base_url: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All of it, once; by the seed that the environment names, or a new one."""
    command = os.environ.get(COMMAND)
    if command is None:
        pytest.skip(f"{COMMAND} does not name the command st; run: make fuzz-openapi")
    seed = os.environ.get(SEED) or str(random.randrange(2**32))
    folder = tmp_path_factory.mktemp("schemathesis")
    options = (
        *("--no-color", f"--seed={seed}", "--report=ndjson,json"),
        *("--report-ndjson-path=all.ndjson", "--report-json-path=summary.json"),
    )
    settings = f"--config-file={FOLDER / 'schemathesis.toml'}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [command, settings, "run", f"{base_url}/openapi.json", *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    summary = folder / "summary.json"
    assert summary.exists(), done.stdout[-4000:]
    exchanges = list(read(folder / "all.ndjson"))
    return Run(done.returncode, done.stdout, json.loads(summary.read_text()), exchanges)


def read(report: Path) -> Iterator[Exchange]:
    """A report of events, one a line."""
    for line in report.read_text().splitlines():
        recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
        for name, case in recorder.get("cases", {}).items():
            response = recorder["interactions"].get(name, {}).get("response")
            if response is None:
                continue
            content: dict[str, str] = response["content"] or {}
            yield Exchange(
                recorder["label"],
                case["value"]["meta"]["generation"]["mode"] == "positive",
                response["status_code"],
                base64.b64decode(content.get("$base64", "")),
            )
