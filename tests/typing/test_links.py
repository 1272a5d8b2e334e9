"""A link that does not fit is a type error, in mypy and in pyright; one that fits is none."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

RIGHT: Final = Path(__file__).with_name("right_links.py")

WRONG: Final = """\
from __future__ import annotations

from right_links import (
    Decode, Detokenize, Encode, Moderate, ModerateByScope, Reserve, StopStrings,
    make_encoder, make_moderation, text, tokens,
)
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope

Pipeline().then(Decode())  # wrong: a reservation is missing
Pipeline().then(Reserve()).then(Reserve())  # wrong: it takes a request
Pipeline().then(Detokenize)  # wrong: it takes tokens
tokens.then(Encode())  # wrong: it takes text
tokens.then(StopStrings())  # wrong: its product takes text
tokens.then(Moderate())  # wrong: it receives text
tokens.then(ModerateByScope)  # wrong: its product receives text
tokens.then(make_encoder)  # wrong: its product takes text
tokens.then(make_moderation)  # wrong: its product receives text
text.then(Detokenize)  # wrong: it takes tokens
text.then(Encode()).then(StopStrings())  # wrong: bytes are no text
text.then(Encode)  # wrong: its class takes no scope
text.then(42)  # wrong: no stage at all
text.insert(Encode(), where="behind", anchor="detokenize")  # wrong: no such place


class NoFinish:
    def __init__(self, scope: RequestScope) -> None: ...

    def feed(self, item: object) -> list[bytes]:
        return []


text.then(NoFinish)  # wrong: a transform finishes
"""

EXPECTED: Final = {
    number for number, line in enumerate(WRONG.splitlines(), start=1) if "# wrong" in line
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project: nothing of this repository's configuration reaches it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "right_links.py").write_text(RIGHT.read_text())
    (folder / "wrong_links.py").write_text(WRONG)
    (folder / "pyproject.toml").write_text(
        '[tool.mypy]\nstrict = true\n[tool.pyright]\ntypeCheckingMode = "strict"\n'
    )
    return folder


def _lines(found: list[tuple[str, int]], name: str) -> set[int]:
    return {line for file, line in found if Path(file).name == name}


def test_mypy_finds_the_wrong_links_and_no_others(project: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(project / "cache"), "."],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(\S+\.py):(\d+): error:", run.stdout, re.MULTILINE)
    errors = [(file, int(line)) for file, line in found]
    assert _lines(errors, "right_links.py") == set(), run.stdout
    assert _lines(errors, "wrong_links.py") == EXPECTED, run.stdout + run.stderr


def test_pyright_finds_the_wrong_links_and_no_others(project: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(run.stdout)
    errors = [
        (str(found["file"]), int(found["range"]["start"]["line"]) + 1)
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    ]
    assert _lines(errors, "right_links.py") == set(), run.stdout
    assert _lines(errors, "wrong_links.py") == EXPECTED, run.stdout
