"""The command lines of the documentation, each in a process of its own, from start to SIGTERM."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.hosts.answers import read
from tests.leaving import Client

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(
    r"^\$ (\w+ myapp:app.*)$", (ROOT / "docs" / "embedding.md").read_text(), re.MULTILINE
)
LIMIT = 60
"""Seconds; starting an interpreter on a loaded machine is a part of them."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Running:
    """A started server."""

    def __init__(self, process: anyio.abc.Process, port: int) -> None:
        self._process = process
        self.port = port

    async def stop(self) -> tuple[int, bytes]:
        """Its exit status, and all that it has printed."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        printed = b"".join([data async for data in self._process.stdout])
        return await self._process.wait(), printed


@asynccontextmanager
async def started(command: str) -> AsyncGenerator[Running]:
    program, _, *options = shlex.split(command)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = str(listener.fileno())
        module, *where = {
            "uvicorn": ["uvicorn", "--fd", descriptor],
            "hypercorn": ["hypercorn", "--bind", f"fd://{descriptor}"],
            "granian": ["tests.hosts.granian_cli"],
        }[program]
        process = await anyio.open_process(
            [sys.executable, "-m", module, "tests.hosts.served:app", *options, *where],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | {"GRANIAN_TEST_DESCRIPTOR": descriptor},
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        try:
            yield Running(process, listener.getsockname()[1])
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_line(command: str) -> None:
    with anyio.fail_after(LIMIT):
        async with started(command) as running:
            with ExitStack() as clients:

                def connect() -> Client:
                    client = Client(running.port)
                    clients.callback(client.leave)
                    return client

                leaving = connect()
                leaving.post(stream=True)
                await leaving.until(b'"text":"t"')
                leaving.leave()
                asking = connect()
                asking.get("/held")
                held = await asking.read_all()
                staying = connect()
                staying.post(stream=True, max_tokens=9)
                answer = read(await staying.read_all())
            code, printed = await running.stop()
    assert held.endswith(b"\r\n\r\n{}")
    assert (answer.status, answer.complete, answer.text) == (200, True, "the quick")
    assert code in (0, -signal.SIGTERM), printed
    assert b"Traceback" not in printed


def test_every_server_has_a_command_line() -> None:
    assert {command.split()[0] for command in COMMANDS} == {"uvicorn", "hypercorn", "granian"}
