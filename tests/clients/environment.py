"""Make an environment for each benchmark client: SGLang's, guidellm and aiperf. 3.5 GB in all.

``python tests/clients/environment.py DIRECTORY`` makes them below that folder and leaves finished
ones alone. One that cannot be made leaves the reason beside its folder, and its tests say it.
vLLM's client comes with vLLM itself: ``make test-vllm`` makes that environment.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"
LAST_LINES = 5
"""Of what pip said."""


@dataclass(frozen=True)
class Distribution:
    """A benchmark client as pip installs it."""

    name: str
    version: str
    steps: tuple[tuple[str, ...], ...]
    """Arguments of ``pip install``, one call each."""

    @property
    def stamp(self) -> str:
        return f"{self.name}-{self.version}.done"


DISTRIBUTIONS = (
    # SGLang requires CUDA and its kernels; its client alone is plain Python.
    Distribution(
        "sglang",
        "0.5.23",
        (
            ("--no-deps", "sglang==0.5.23"),
            (
                *("transformers==5.19.0", "aiohttp", "datasets", "msgspec", "numpy", "orjson"),
                *("pillow", "psutil", "pybase64", "pyzmq", "requests", "tqdm"),
            ),
        ),
    ),
    # Its data loader is torch's; one version of it is brought by all environments here.
    Distribution("guidellm", "0.8.1", ((TORCH,), (TORCH, "guidellm==0.8.1"))),
    Distribution("aiperf", "0.13.0", (("aiperf==0.13.0",),)),
)


def python_of(directory: Path, name: str) -> Path:
    return directory / name / "bin" / "python"


def reason_file(directory: Path, name: str) -> Path:
    """Where the reason stands why a client could not be installed."""
    return directory / f"{name}.failed"


def _pip(python: Path, arguments: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    sys.stdout.write(f"{python.parents[1].name}: pip install {' '.join(arguments)}\n")
    sys.stdout.flush()
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def make(distribution: Distribution, directory: Path) -> None:
    """Make one environment.

    :raises subprocess.CalledProcessError: pip failed; its output has the reason.
    """
    folder = directory / distribution.name
    stamp = folder / distribution.stamp
    if stamp.exists():
        return
    venv.create(folder, with_pip=True, clear=True)
    for step in distribution.steps:
        _pip(python_of(directory, distribution.name), step)
    stamp.touch()


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for distribution in DISTRIBUTIONS:
        reason = reason_file(directory, distribution.name)
        reason.unlink(missing_ok=True)
        try:
            make(distribution, directory)
        except subprocess.CalledProcessError as error:
            said: str = error.stdout
            reason.write_text("\n".join(said.splitlines()[-LAST_LINES:]))
            sys.stderr.write(f"{distribution.name} cannot be installed here: {said}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
