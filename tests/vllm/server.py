"""One vLLM server in its own process and environment, from its command line to its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "VLLM_TEST_DUMPS"
"""Variable that names the folder of the dumping connector."""
PIPE = "events"
"""In that folder; one line an event: what happened, the request, a number or the reason."""
PREEMPTIONS = "vllm:num_preemptions_total"
READY = "Application startup complete."
ARGUMENTS = (
    "--dtype=float32",
    "--enforce-eager",
    "--max-model-len=2048",
    "--max-num-seqs=8",
    "--max-num-batched-tokens=256",
    "--return-tokens-as-token-ids",
    "--served-model-name=smollm2",
    "--host=127.0.0.1",
)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "KMP_BLOCKTIME": "0",
    "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "engine", "transports")),
}


Transfer: TypeAlias = Callable[[dict[str, object]], dict[str, object]]


@dataclass
class VllmServer:
    port: int

    def complete(
        self, prompt: list[int], params: Mapping[str, object] | None = None, **fields: object
    ) -> dict[str, Any]:
        """One completion of one greedy token, as the router asks for it."""
        body: dict[str, object] = {
            "model": "smollm2",
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
            "return_token_ids": True,
            **fields,
        }
        if params is not None:
            body["kv_transfer_params"] = dict(params)
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def preemptions(self) -> float:
        """How often a request has lost its blocks to another one."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(PREEMPTIONS))

    def first_token(self, prompt: list[int], params: Mapping[str, object]) -> int:
        (token,) = self.complete(prompt, params)["choices"][0]["token_ids"]
        return int(token)


def _copy(output: IO[str], log: Path, ready: Future[None]) -> None:
    """Keep the log, and say when the server is ready; to the end of the process."""
    with output, log.open("w") as file:
        for line in output:
            file.write(line)
            file.flush()
            if READY in line and not ready.done():
                ready.set_result(None)
    if not ready.done():
        ready.set_exception(RuntimeError(f"vLLM did not start: {log.read_text()[-4000:]}"))


def _meet(port: int) -> None:
    """Connect once: vLLM says that it has started a moment before it listens."""
    limit = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > limit:
                raise
        else:
            return


@contextmanager
def vllm_server(
    python: str,
    model: Path,
    log: Path,
    *,
    connector: str,
    module: str,
    extra: Mapping[str, object] | None = None,
    transfer: Transfer = dict,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Generator[VllmServer]:
    """A server until the block ends.

    :param transfer: puts our connector's configuration into that of others.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    ours: dict[str, object] = {
        "kv_connector": connector,
        "kv_connector_module_path": module,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": dict(extra or {}),
    }
    process = subprocess.Popen(
        [
            *(python, "-m", "vllm.entrypoints.openai.api_server", *ARGUMENTS),
            *(f"--model={model}", f"--port={port}"),
            f"--kv-transfer-config={json.dumps(transfer(ours))}",
            *arguments,
        ],
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    ready: Future[None] = Future()
    copier = threading.Thread(target=_copy, args=(process.stdout, log, ready))
    copier.start()
    try:
        ready.result(600)
        _meet(port)
        yield VllmServer(port)
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        copier.join()
