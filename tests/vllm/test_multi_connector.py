"""Beside vLLM's own connector, under ``MultiConnector``: each request belongs to one of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.conftest import Whole
from tests.vllm.dumps import Dumps, dumping_server

pytestmark = pytest.mark.vllm


def beside_nixl(ours: dict[str, object]) -> dict[str, object]:
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_buffer_device": "cpu"}
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"connectors": [nixl, ours]},
    }


@pytest.fixture(scope="module")
def dumps(
    vllm_python: str, model_directory: Path, whole: Whole, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dumps]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    environment = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port), "UCX_TLS": "tcp,self,sm"}
    folder = tmp_path_factory.mktemp("multi")
    with dumping_server(
        vllm_python, model_directory, whole, folder, transfer=beside_nixl, environment=environment
    ) as found:
        yield found


def test_a_request_of_ours_is_handed_over_by_us_alone(dumps: Dumps, whole: Whole) -> None:
    prompt = whole.text(300)
    answer = dumps.server.complete(prompt, dumps.params("a1"))
    assert answer["kv_transfer_params"] is None
    assert dumps.next("sent") == f"sent a1 300 {prompt[-1]}"
    dumps.check(whole, "a1", prompt)


def test_a_request_of_vllms_own_connector_is_its_own_alone(dumps: Dumps, whole: Whole) -> None:
    answer = dumps.server.complete(whole.text(301)[::-1], {"do_remote_decode": True})
    assert answer["kv_transfer_params"]["do_remote_prefill"] is True
    prompt = whole.text(22)
    dumps.server.complete(prompt, dumps.params("b1"))
    assert dumps.next("sent") == f"sent b1 22 {prompt[-1]}"
