"""Make the environment that the tests of this folder need: schemathesis.

``python tests/openapi_fuzz/environment.py DIRECTORY`` makes it, or leaves a finished one alone, and
prints its command.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

SCHEMATHESIS = "4.32.5"
STAMP = f"schemathesis-{SCHEMATHESIS}.done"


def make(directory: Path) -> Path:
    """The environment's ``st``."""
    stamp = directory / STAMP
    if not stamp.exists():
        venv.create(directory, with_pip=True, clear=True)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet", f"schemathesis=={SCHEMATHESIS}"]
        # Standard output is for the answer.
        subprocess.run(install, check=True, stdout=sys.stderr)
        stamp.touch()
    return directory / "bin" / "st"


if __name__ == "__main__":
    sys.stdout.write(f"{make(Path(sys.argv[1]).resolve())}\n")
