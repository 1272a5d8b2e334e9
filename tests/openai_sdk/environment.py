"""Make the environment that the tests of this folder need: the openai SDK and its own tests.

``python tests/openai_sdk/environment.py DIRECTORY`` makes it, or leaves a finished one alone, and
prints its python. The SDK's tests are only in its source distribution, which is unpacked there.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

OPENAI = "3.57.0"
SOURCE = f"openai-{OPENAI}"
NEEDED = (f"openai[aiohttp]=={OPENAI}", "pytest>=9", "pytest-asyncio>=1.4", "rich>=13.7")
"""Of the SDK's own list, what the tests of its API import."""
STAMP = f"{SOURCE}.done"


def make(directory: Path) -> Path:
    """The environment's python."""
    python = directory / "bin" / "python"
    stamp = directory / STAMP
    if stamp.exists():
        return python

    def pip(*arguments: str) -> None:
        command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
        # Standard output is for the answer.
        subprocess.run(command, check=True, stdout=sys.stderr)

    venv.create(directory, with_pip=True, clear=True)
    with tempfile.TemporaryDirectory() as folder:
        source = ("--no-binary=openai", f"openai=={OPENAI}")
        pip("download", "--quiet", "--no-deps", f"--dest={folder}", *source)
        with tarfile.open(Path(folder) / f"{SOURCE}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
    pip("install", "--quiet", *NEEDED)
    stamp.touch()
    return python


if __name__ == "__main__":
    sys.stdout.write(f"{make(Path(sys.argv[1]).resolve())}\n")
