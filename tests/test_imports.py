"""Who imports whom: the core stays light, and knows neither engines nor transports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "tilert_stream": ROOT / "tilert_stream",
    "tilert_engine": ROOT / "engine" / "tilert_engine",
    "tilert_transports": ROOT / "transports" / "tilert_transports",
}
MODELS = {"torch", "nixl", "mooncake", "transformers"}
HEAVY = MODELS | {"numpy", "tokenizers", "pydantic", "starlette"}
CONTRACTS = {f"tilert_stream.{name}" for name in ("abc", "events", "errors", "completion")}
COMPOSERS = ("nodes", "serve", "testing")


def modules(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def imports(path: Path, package: str) -> Iterator[tuple[str, bool]]:
    """Each module that ``path`` names, and whether only a type checker imports it."""
    base = [package, *path.relative_to(PACKAGES[package]).parts[:-1]]
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for child in block.body
        for node in ast.walk(child)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in typing_only
        elif isinstance(node, ast.ImportFrom):
            parent = base[: len(base) - node.level + 1] if node.level else []
            module = ".".join([*parent, *([node.module] if node.module else [])])
            names = [module] if node.module else [f"{module}.{alias.name}" for alias in node.names]
            for name in names:
                yield name, id(node) in typing_only


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_tests_see_the_tree() -> None:
    assert len(modules("tilert_stream")) > 30
    assert len(modules("tilert_engine")) > 4
    worker = PACKAGES["tilert_engine"] / "decode_worker.py"
    seen = dict(imports(worker, "tilert_engine"))
    assert seen["tilert_stream.mailbox"], "typing only"
    assert not seen["tilert_stream.completion"]
    assert "tilert_engine.worker" in seen


@pytest.mark.parametrize("package", ["tilert_engine", "tilert_transports"])
def test_engines_and_transports_import_only_the_contracts(package: str) -> None:
    for path in modules(package):
        for module, typing_only in imports(path, package):
            if module.startswith("tilert_stream"):
                allowed = module in CONTRACTS or (typing_only and module == "tilert_stream.mailbox")
                assert allowed, f"{named(path)} imports {module}"


@pytest.mark.parametrize(
    ("package", "other"),
    [("tilert_engine", "tilert_transports"), ("tilert_transports", "tilert_engine")],
)
def test_engines_and_transports_do_not_know_each_other(package: str, other: str) -> None:
    for path in modules(package):
        for module, _ in imports(path, package):
            assert module.split(".")[0] != other, f"{named(path)} imports {module}"


def test_only_nodes_serve_and_the_test_kit_compose_them() -> None:
    for path in modules("tilert_stream"):
        if path.relative_to(PACKAGES["tilert_stream"]).parts[0] in COMPOSERS:
            continue
        for module, _ in imports(path, "tilert_stream"):
            outside = module.split(".")[0] in ("tilert_engine", "tilert_transports")
            assert not outside, f"{named(path)} imports {module}"


def loaded_by(statement: str) -> set[str]:
    """The top-level packages in a fresh interpreter after ``statement``."""
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(run.stdout.split())


def test_the_package_imports_nothing_heavy() -> None:
    loaded = loaded_by("import tilert_stream, tilert_stream.service, tilert_stream.registry")
    assert "anyio" in loaded
    assert not loaded & HEAVY
    assert not loaded & {"tilert_engine", "tilert_transports", "trio", "uvloop"}


@pytest.mark.parametrize("module", ["tilert_engine.scripted", "tilert_engine.decode_worker"])
def test_an_engine_without_a_model_imports_nothing_heavy(module: str) -> None:
    assert not loaded_by(f"import {module}") & HEAVY


def test_a_local_node_brings_no_model_library() -> None:
    loaded = loaded_by("import tilert_stream.nodes.local")
    assert "tilert_engine" in loaded
    assert not loaded & MODELS
