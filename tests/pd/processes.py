"""A cluster of real processes: each can be killed, stopped, and started again where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import orjson

from tests.free_ports import free_ports
from tests.pd.cluster import LIMIT, Answer, read
from tilert_stream.http.client import HTTPClient, Origin

if TYPE_CHECKING:
    from collections.abc import Generator

SERVE = (sys.executable, "-m", "tilert_stream.serve")


class NodeProcess:
    """One role in a process of its own."""

    def __init__(self, role: str, *arguments: str) -> None:
        self._command = [*SERVE, role, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start, and wait until it says that it is ready."""
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), f"{self._command} has not come up"

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=60)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


class ProcessCluster:
    """A router, a prefill node and two decode nodes of two slots, on loopback."""

    def __init__(self, transport: str) -> None:
        self.prefill_port, router_port, *ports = free_ports(6)
        self.decode_ports = [(ports[0], ports[1]), (ports[2], ports[3])]
        engine = ("--engine", "scripted", "--transport", transport, "--no-access-log")
        self.prefill = NodeProcess("prefill", *engine, "--port", str(self.prefill_port))
        self.decode = [
            NodeProcess(
                "decode",
                *engine,
                *("--ctrl-port", str(ctrl), "--http-port", str(http)),
                *("--slots", "2", "--reservation-ttl", "2"),
            )
            for ctrl, http in self.decode_ports
        ]
        nodes = [f"--prefill=http://127.0.0.1:{self.prefill_port}"]
        nodes += [f"--decode=127.0.0.1:{ctrl}:{http}" for ctrl, http in self.decode_ports]
        limits = ("--prefill-timeout=10", "--kv-timeout=10", "--inter-token-timeout=10")
        self.router = NodeProcess(
            "router", "--model", "bytes", "--port", str(router_port), *nodes, *limits
        )
        self.origin = Origin.parse(f"http://127.0.0.1:{router_port}")
        self.client = HTTPClient()

    @property
    def nodes(self) -> dict[str, NodeProcess]:
        """Every process, by the name that a test is called after."""
        return {"router": self.router, "prefill": self.prefill, "decode": self.decode[0]}

    @contextmanager
    def running(self) -> Generator[ProcessCluster]:
        with ExitStack() as stack:
            for node in (self.prefill, *self.decode, self.router):
                stack.callback(node.kill)
                node.start()
            with self.client:
                yield self

    async def ask(self, max_tokens: int = 30) -> Answer | None:
        """One streamed answer; None where the router itself is not there."""
        body = orjson.dumps(
            {
                "messages": [{"role": "user", "content": "abc"}],
                "max_tokens": max_tokens,
                "stream": True,
            }
        )
        try:
            async with self.client.request(
                self.origin, "POST", "/v1/chat/completions", (), body
            ) as response:
                return await read(response)
        except Exception:  # noqa: BLE001 - the router has been killed
            return None
        finally:
            # The caller may go on to block, which is not to happen inside of the client's own call.
            await anyio.lowlevel.cancel_shielded_checkpoint()

    async def served(self) -> Answer:
        """Ask until somebody answers in full, as a client that retries does."""
        with anyio.fail_after(LIMIT):
            while True:
                answer = await self.ask()
                if answer is not None and answer.whole:
                    return answer

    async def status(self, node: int) -> dict[str, object]:
        """What a decode node says of its slots."""
        origin = Origin.parse(f"http://127.0.0.1:{self.decode_ports[node][1]}")
        async with self.client.request(origin, "GET", "/decode_status") as response:
            found: dict[str, object] = orjson.loads(await response.read(65536, within=LIMIT))
            return found

    async def idle(self, node: int) -> None:
        """Wait until every slot of a decode node is free, within what its leases allow."""
        with anyio.fail_after(LIMIT):
            while (await self.status(node))["busy"]:
                await anyio.lowlevel.checkpoint()
