"""A link that does not fit is a type error, in mypy and in pyright; one that fits is none."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RIGHT = Path(__file__).parent / "right_links.py"
WRONG = Path(__file__).parent / "wrong_links.py.txt"
"""No ``.py``: who checks the whole tree would find these errors too."""


def mypy(wrong: Path) -> list[str]:
    cache = str(wrong.parent / "cache")
    return run(["mypy", "--cache-dir", cache, "--no-error-summary", str(RIGHT), str(wrong)])


def pyright(wrong: Path) -> list[str]:
    return run(["pyright", "--pythonpath", sys.executable, str(RIGHT), str(wrong)])


def run(command: list[str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout.splitlines()


ERROR = re.compile(r"(\w+\.py):(\d+):.*\berror\b")


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_wrong_links_are_errors_and_right_ones_are_not(
    checker: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong_links.py"
    wrong.write_text(WRONG.read_text())
    output = checker(wrong)
    found = {(m[1], int(m[2])) for line in output if (m := ERROR.search(line))}
    expected = {
        (wrong.name, number)
        for number, line in enumerate(WRONG.read_text().splitlines(), 1)
        if line.endswith("# wrong")
    }
    assert len(expected) > 10
    assert found == expected, "\n".join(output)
