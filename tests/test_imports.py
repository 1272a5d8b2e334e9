"""Who may import whom: engines and transports stand on the contracts, only the hosts compose."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent
CONTRACTS: Final = {f"tilert_stream.{name}" for name in ("abc", "completion", "errors", "events")}
FOR_TYPING: Final = CONTRACTS | {"tilert_stream.mailbox"}
COMPOSERS: Final = ("nodes", "serve", "testing")
"""Where engines, transports and the framework meet."""


class Import(NamedTuple):
    importer: str
    module: str
    typing_only: bool


def _imports(source: Path, package: str) -> Iterator[Import]:
    for path in sorted(source.rglob("*.py")):
        inside = ".".join((package, *path.relative_to(source).parent.parts))
        tree = ast.parse(path.read_text())
        guarded = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
            for statement in block.body
            for node in ast.walk(statement)
        }
        for node in ast.walk(tree):
            importer = str(path.relative_to(ROOT))
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(importer, alias.name, id(node) in guarded)
            elif isinstance(node, ast.ImportFrom):
                relative = "." * node.level + (node.module or "")
                base = importlib.util.resolve_name(relative, inside)
                for alias in node.names:
                    full = f"{base}.{alias.name}"
                    known = importlib.util.find_spec(base) and _is_module(full)
                    yield Import(importer, full if known else base, id(node) in guarded)


def _is_module(name: str) -> bool:
    roots = (ROOT, ROOT / "engine", ROOT / "transports")
    parts = Path(*name.split("."))
    return any(
        (root / parts).with_suffix(".py").exists() or (root / parts).is_dir() for root in roots
    )


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("engine/tilert_engine", "tilert_engine"),
        ("transports/tilert_transports", "tilert_transports"),
    ],
)
def test_engines_and_transports_stand_on_the_contracts_only(source: str, package: str) -> None:
    wrong = [
        found
        for found in _imports(ROOT / source, package)
        if found.module.partition(".")[0] == "tilert_stream"
        and found.module not in (FOR_TYPING if found.typing_only else CONTRACTS)
    ]
    assert wrong == []


def test_engines_and_transports_do_not_know_each_other() -> None:
    engine = _imports(ROOT / "engine" / "tilert_engine", "tilert_engine")
    transports = _imports(ROOT / "transports" / "tilert_transports", "tilert_transports")
    assert [found for found in engine if found.module.startswith("tilert_transports")] == []
    assert [found for found in transports if found.module.startswith("tilert_engine")] == []


def test_the_framework_leaves_engines_and_transports_to_its_composers() -> None:
    wrong = [
        found
        for found in _imports(ROOT / "tilert_stream", "tilert_stream")
        if found.module.startswith(("tilert_engine", "tilert_transports"))
        and Path(found.importer).parts[1] not in COMPOSERS
    ]
    assert wrong == []


def test_what_the_core_imports_at_run_time_leads_downwards() -> None:
    """Contracts and messages know no room above them."""
    below = {"tilert_stream/abc.py", "tilert_stream/errors.py", "tilert_stream/events.py"}
    allowed = {"tilert_stream.abc", "tilert_stream.errors", "tilert_stream.events"}
    wrong = [
        found
        for found in _imports(ROOT / "tilert_stream", "tilert_stream")
        if found.importer in below
        and not found.typing_only
        and found.module.startswith("tilert_stream")
        and found.module not in allowed
    ]
    assert wrong == []


def test_the_check_sees_relative_and_guarded_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "abc.py").write_text("")
    (tmp_path / "it.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from .errors import Busy\n"
        "if TYPE_CHECKING:\n    from tilert_stream.mailbox import Mailbox\n"
    )
    found = list(_imports(tmp_path, "tilert_stream"))
    assert Import("it.py", "tilert_stream.errors", typing_only=False) in found
    assert Import("it.py", "tilert_stream.mailbox", typing_only=True) in found
