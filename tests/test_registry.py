from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tilert_stream.errors import (
    StageLoadError,
    StageNotFound,
)
from tilert_stream.events import Finished, GenerateRequest, TextDelta
from tilert_stream.fusion import fuse
from tilert_stream.pipeline import Pipeline
from tilert_stream.registry import load
from tilert_stream.scope import RequestScope
from tilert_stream.testing import make_scope


class Emit:
    async def produce(self, item: GenerateRequest, scope: RequestScope) -> TextDelta | None:
        return None


BASE = Pipeline().then(Emit())

MODULE = """from tilert_stream.events import TextDelta

class Echo:
    def __init__(self, scope): ...
    def feed(self, item: TextDelta):
        yield item
    def finish(self, outcome):
        return ()

class Box:
    inner = Echo
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that packages are imported from, with one installed plugin."""
    (tmp_path / "echo_plugin.py").write_text(MODULE)
    (tmp_path / "broken_plugin.py").write_text("import a_library_that_is_missing\n")
    entries = {
        "echo": "echo_plugin:Echo",
        "broken": "broken_plugin:Anything",
        "absent": "echo_plugin:Absent",
        "twice": "echo_plugin:Echo",
        "stop_strings": "echo_plugin:Echo",
    }
    _install(tmp_path, "echo-plugin", entries)
    _install(tmp_path, "another-plugin", {"twice": "echo_plugin:Box.inner"})
    _install(tmp_path, "echo-plugin-again", {"echo": "echo_plugin:Echo"})
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    for name in ("echo_plugin", "broken_plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def _install(site: Path, name: str, entries: dict[str, str]) -> None:
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = ["[tilert_stream.stages]", *(f"{key} = {value}" for key, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("reference", ["echo", "echo_plugin:Echo", "echo_plugin:Box.inner"])
def test_a_stage_by_name(reference: str) -> None:
    link = BASE.then(reference).links[-1]
    assert (link.name, link.takes) == ("echo", "TextDelta")
    with make_scope() as scope:
        chain, segments = fuse([link], scope)
        assert segments == []
        assert chain.run([TextDelta("a"), Finished("length")]) == [TextDelta("a")]


@pytest.mark.usefixtures("site")
def test_a_built_in_name_cannot_be_taken_over() -> None:
    link = BASE.then("stop_strings").links[-1]
    assert (link.name, link.takes, link.gives) == ("stop_strings", "TextDelta", "TextDelta")
    assert type(link.target).__module__ == "tilert_stream.stages.stop"


@pytest.mark.usefixtures("site")
def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(StageNotFound) as caught:
        BASE.then("stop_string")
    message = str(caught.value)
    assert "no stage is called 'stop_string'. Did you mean 'stop_strings'?" in message
    assert "Known: absent, broken, echo, stop_strings, twice." in message
    assert "'module:attr'" in message


@pytest.mark.usefixtures("site")
def test_a_broken_plugin_shows_its_own_error() -> None:
    with pytest.raises(
        StageLoadError, match="No module named 'a_library_that_is_missing'"
    ) as caught:
        BASE.then("broken")
    assert "stage 'broken': importing 'broken_plugin' failed" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.usefixtures("site")
def test_two_plugins_with_one_name() -> None:
    with pytest.raises(StageLoadError, match="'twice' is registered twice") as caught:
        BASE.then("twice")
    assert "echo_plugin:Echo" in str(caught.value)
    assert "echo_plugin:Box.inner" in str(caught.value)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("absent", "stage 'absent': module 'echo_plugin' has no 'Absent'"),
        ("echo_plugin:Nothing", "module 'echo_plugin' has no 'Nothing'"),
        ("echo_plugin:Box.nothing", "module 'echo_plugin' has no 'Box.nothing'"),
        ("no_such_module:Echo", "No module named 'no_such_module'"),
        ("echo_plugin:", "is not of the form 'module:attr'"),
        (":Echo", "is not of the form 'module:attr'"),
    ],
)
def test_a_reference_that_leads_nowhere(reference: str, message: str) -> None:
    with pytest.raises(StageLoadError, match=message):
        BASE.then(reference)


def test_a_plugin_that_exits_on_import_is_told_as_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaves_on_import.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(StageLoadError, match="SystemExit: 3"):
        load("leaves_on_import:Stage")
