"""The SDK's own tests, in an environment of their own, against our server on a real model.

``make test-openai`` makes the environment and names its python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.openai_sdk.differences import MODULES
from tests.openai_sdk.environment import SOURCE

PYTHON = "OPENAI_SDK_PYTHON"
SERVE = [
    *(sys.executable, "-m", "tilert_stream.serve", "--port=0", "--no-access-log"),
    *("--model=tiny-glm5", "--max-seq-len=64", "--threads=1", "--output-parser=hermes"),
    # The names that the SDK's tests ask for.
    *("--served-model-name=gpt-6-astra", "--served-model-name=gpt-3.5-turbo-instruct"),
]


@dataclass
class Results:
    """What became of each test, as ``module::test[client]``."""

    passed: set[str] = field(default_factory=set[str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """With what was raised."""


@pytest.fixture(scope="session")
def sdk_python() -> Path:
    python = os.environ.get(PYTHON)
    if python is None:
        pytest.skip(f"{PYTHON} does not name a python that has the SDK; run: make test-openai")
    return Path(python)


@pytest.fixture(scope="session")
def base_url() -> Generator[str]:
    """A server until the session ends."""
    with subprocess.Popen(
        SERVE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"Serving \S+ at (http://127\.0\.0\.1:\d+/v1)\n", line)
        try:
            assert found is not None, line
            yield found[1]
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def results(sdk_python: Path, base_url: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All of them, run once: clients that are loose, strict, and strict on aiohttp."""
    report = tmp_path_factory.mktemp("openai") / "report.xml"
    # The SDK's options spread tests over processes, which a handful of slots does not speed up.
    options = ("-q", "--override-ini=addopts=", "-p", "no:cacheprovider", f"--junitxml={report}")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [sdk_python, "-m", "pytest", *options, *(f"tests/api_resources/{m}" for m in MODULES)],
        cwd=sdk_python.parents[1] / SOURCE,
        env={**environment, "TEST_API_BASE_URL": base_url},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.returncode in (0, 1), run.stdout[-4000:]
    return read(report)


def read(report: Path) -> Results:
    """A JUnit report."""
    results = Results()
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.attrib["classname"].removeprefix("tests.api_resources.").rpartition(".")[0]
        test = f"{module.replace('.', '/')}.py::{case.attrib['name']}"
        # A class of clients each: their tests have the same names.
        test = f"{test} {case.attrib['classname'].rpartition('.')[2]}"
        ended = next(iter(case), None)
        if ended is None:
            results.passed.add(test)
        else:
            results.failed[test] = ended.attrib["message"]
    return results
