"""Benchmark clients complete without a failure, and count exactly the tokens that were made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.clients.benchmark_clients import CLIENTS, ENDPOINTS, BenchmarkClient, Endpoint, Load
from tests.clients.environment import DISTRIBUTIONS, python_of, reason_file
from tests.clients.servers import TINY_GLM5, MeasuredServer, server, wait_for_made

pytestmark = pytest.mark.clients

ENVIRONMENTS = "CLIENT_ENVIRONMENTS"
"""Variable that names the folder of the environments."""
VLLM = "VLLM_PYTHON"
TIME = 300
"""Seconds for one run, starting the client included."""
SERVERS = [
    (layout, engine) for layout in ("one-process", "router") for engine in ("tiny-glm5", "scripted")
]


@pytest.fixture(scope="module", params=SERVERS, ids="-".join)
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[MeasuredServer]:
    layout, engine = request.param
    with server(layout, engine, tmp_path_factory.mktemp("servers") / "server.log") as running:
        yield running


def installed(client: BenchmarkClient) -> Path:
    """The python of the client's environment; skips where there is none."""
    if client.name == "vllm":
        python = Path(os.environ.get(VLLM, ""))
        if not python.is_file():
            pytest.skip("vLLM has no environment; make it with: make test-vllm")
        return python
    directory = os.environ.get(ENVIRONMENTS)
    if directory is None:
        pytest.skip(f"{ENVIRONMENTS} names no folder of environments; run: make test-clients")
    reason = reason_file(Path(directory), client.name)
    if reason.exists():
        pytest.skip(f"{client.name} could not be installed: {reason.read_text()}")
    python = python_of(Path(directory), client.name)
    (distribution,) = (each for each in DISTRIBUTIONS if each.name == client.name)
    if not (python.parents[1] / distribution.stamp).exists():
        pytest.skip(f"{client.name} {distribution.version} is not there; run: make test-clients")
    return python


def run(command: list[str], folder: Path, *, offline: bool) -> None:
    """Run a client to its end."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if offline:
        environment["HF_HUB_OFFLINE"] = "1"
    log = folder / "client.log"
    with log.open("w") as file:
        done = subprocess.run(
            command, env=environment, stdout=file, stderr=file, timeout=TIME, check=False
        )
    assert done.returncode == 0, log.read_text()[-4000:]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_counts_exactly_the_tokens_that_were_made(
    client: BenchmarkClient,
    endpoint: Endpoint,
    measured: MeasuredServer,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    python = installed(client)
    load = Load(measured.url, measured.model, TINY_GLM5, endpoint)
    sent, made = measured.sent(), measured.made()
    # aiperf does not read a local tokenizer when it is told to be offline.
    run(client.command(python, load, tmp_path), tmp_path, offline=client.name != "aiperf")
    report = client.report(load, tmp_path)
    record_property("report", f"{client.name} {endpoint} {report}")
    assert (report.succeeded, report.failed) == (load.requests, 0), report
    assert measured.sent() - sent == report.tokens
    assert wait_for_made(measured, made, report.tokens) == report.tokens
