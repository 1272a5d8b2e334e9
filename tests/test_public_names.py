"""Every module says what is public, and says it right; importing the package stays light."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
SOURCES: Final = {
    "tilert_stream": ROOT / "tilert_stream",
    "tilert_engine": ROOT / "engine" / "tilert_engine",
    "tilert_transports": ROOT / "transports" / "tilert_transports",
}
RUN_ONLY: Final = {"tilert_stream.serve.__main__", "tilert_stream.__main__"}
LAZY: Final = ("torch", "nixl", "transformers", "tokenizers", "pydantic", "starlette", "mooncake")


def _modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for package, source in SOURCES.items():
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            name = ".".join((package, *(part for part in parts if part != "__init__")))
            if name not in RUN_ONLY and path.stat().st_size:
                found[name] = path
    return found


MODULES: Final = _modules()


def _top_level(path: Path) -> tuple[set[str], tuple[str, ...] | None]:
    """The public classes and functions that a module defines itself, and its ``__all__``."""
    defined: set[str] = set()
    listed: tuple[str, ...] | None = None
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = tuple(ast.literal_eval(node.value))
    return {name for name in defined if not name.startswith("_")}, listed


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_unique_and_there(name: str) -> None:
    _, listed = _top_level(MODULES[name])
    if listed is None:
        return  # nothing but what its package imports: checked by the next test
    assert len(set(listed)) == len(listed)
    module = importlib.import_module(name)
    assert [entry for entry in listed if not hasattr(module, entry)] == []


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_lists_is_documented(name: str) -> None:
    path = MODULES[name]
    _, listed = _top_level(path)
    assert ast.get_docstring(ast.parse(path.read_text())), f"{name} does not say what flows through"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in (listed or ()):
            assert ast.get_docstring(node), f"{name}.{node.name} has no docstring"


def test_what_others_import_is_listed() -> None:
    """A name that another room imports is public: its module's ``__all__`` has it."""
    missing: list[str] = []
    for importer, path in MODULES.items():
        package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            if source not in MODULES:
                continue
            defined, listed = _top_level(MODULES[source])
            missing += [
                f"{source}.{alias.name} (imported by {importer})"
                for alias in node.names
                if alias.name in defined and alias.name not in (listed or ())
            ]
    assert missing == []


def test_the_package_names_the_parts_of_an_embedded_service() -> None:
    package = importlib.import_module("tilert_stream")
    assert set(package.__all__) == {
        "Finished",
        "GenerateRequest",
        "KVReady",
        "Limits",
        "Pipeline",
        "Prefilled",
        "Reserved",
        "Sampling",
        "Service",
        "TextDelta",
        "TokenBatch",
        "__version__",
    }


def test_importing_the_package_brings_nothing_heavy() -> None:
    code = (
        "import json, sys, time; begin = time.perf_counter(); import tilert_stream;"
        " print(json.dumps([time.perf_counter() - begin, sorted(sys.modules)]))"
    )
    # -I: neither this directory nor an environment variable has a say in what is imported.
    run = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True)
    seconds, loaded = json.loads(run.stdout)
    print(f"import tilert_stream: {seconds * 1000:.0f} ms")  # noqa: T201 - the figure, for whoever asks with -s
    assert [name for name in LAZY if name in loaded] == []
    assert [
        name for name in loaded if name.startswith(("tilert_engine", "tilert_transports"))
    ] == []
