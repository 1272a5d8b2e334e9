"""Lines of ``docs/clients.md`` that need no further package, run as they stand."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from tilert_stream.http import Server, ServerSettings
from tilert_stream.testing.apps import ScriptedApp

PAGE = Path(__file__).parents[2].joinpath("docs", "clients.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)
SAYS = ['"id":"small"', "[DONE]", '"text_completion"', "HiHiHiHi", "HiHiHiHi", "[72, 105,"]


@asynccontextmanager
async def serving() -> AsyncGenerator[int]:
    app = ScriptedApp(name="small")
    server = Server(app, ServerSettings(port=0, access_log=False), on_drain=app.service.drain)
    async with anyio.create_task_group() as tasks:
        addresses = await tasks.start(server.serve)
        try:
            yield addresses[0][1]
        finally:
            server.drain()


@pytest.fixture(scope="module")
def port() -> Generator[int]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving()) as port:
        yield port


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs_and_prints_the_answer(number: int, port: int) -> None:
    language, text = BLOCKS[number]
    if language == "sh" and shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    command = ["sh", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert SAYS[number] in done.stdout.decode()


def test_every_block_is_known() -> None:
    assert len(BLOCKS) == len(SAYS)
