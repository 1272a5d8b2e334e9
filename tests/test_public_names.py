"""What a module offers is what its ``__all__`` says."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    "tilert_stream": ROOT / "tilert_stream",
    "tilert_engine": ROOT / "engine" / "tilert_engine",
    "tilert_transports": ROOT / "transports" / "tilert_transports",
}


def all_modules() -> list[tuple[str, Path]]:
    """Every module with code in it, by its dotted name; private ones and ``__main__`` apart."""
    found: list[tuple[str, Path]] = []
    for package, source in SOURCES.items():
        for path in sorted(source.rglob("*.py")):
            parts = list(path.relative_to(source).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            if any(part.startswith("_") for part in parts) or not path.read_text().strip():
                continue
            found.append((".".join([package, *parts]), path))
    return found


MODULES = all_modules()


def only_a_docstring(path: Path) -> bool:
    return all(isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)


def defined(path: Path) -> set[str]:
    """The public classes and functions that a module defines itself."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    body = ast.parse(path.read_text()).body
    return {n.name for n in body if isinstance(n, kinds) and not n.name.startswith("_")}


def declared(path: Path) -> tuple[str, ...] | None:
    """``__all__`` as it is written; None where there is none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            value: object = ast.literal_eval(node.value)
            assert isinstance(value, tuple), f"{path.name}: __all__ is a tuple"
            names = [name for name in value if isinstance(name, str)]  # pyright: ignore[reportUnknownVariableType] - literal_eval gives no item type
            assert len(names) == len(value)  # pyright: ignore[reportUnknownArgumentType] - as above
            return tuple(names)
    return None


def test_the_modules_are_found() -> None:
    names = [name for name, _ in MODULES]
    assert "tilert_stream.mailbox" in names
    assert "tilert_stream" in names
    assert "tilert_engine.scripted" in names


@pytest.mark.parametrize("path", [pytest.param(path, id=name) for name, path in MODULES])
def test_all_is_complete(path: Path) -> None:
    if only_a_docstring(path):
        return
    names = declared(path)
    assert names is not None, f"{path.name} has no __all__"
    assert len(set(names)) == len(names), "a name is listed twice"
    if path.name != "__init__.py":
        missing = defined(path) - set(names) - {"main"}
        assert not missing, f"public, or to be named with an underscore: {sorted(missing)}"


OPTIONAL = (
    "tilert_engine.torch",
    "tilert_engine.tilert",
    "tilert_transports",
    "tilert_stream.nodes.vllm_connector",
)
"""They need a library that need not be there."""


@pytest.mark.parametrize("name", [name for name, _ in MODULES if not name.startswith(OPTIONAL)])
def test_all_is_true(name: str) -> None:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), f"{name} has no {public}"
