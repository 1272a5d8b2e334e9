"""A real vLLM prefills, a decode node decodes, a router streams: over each transport."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import OpenAI

from tests.vllm.conftest import Whole
from tests.vllm.roles import role
from tests.vllm.server import ENVIRONMENT, vllm_server
from tilert_transports import nixl_binding

pytestmark = pytest.mark.vllm

TOKENS = 12
PATIENCE = 30
"""Seconds; the cores are shared with vLLM."""
MODEL = "smollm2"


@dataclass
class Cluster:
    python: str
    """vLLM's."""
    model: Path
    client: OpenAI
    decode_url: str

    def complete(self, prompt: list[int]) -> str:
        """A streamed, greedy answer."""
        stream = self.client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True
        )
        with stream:
            return "".join(choice.text for chunk in stream for choice in chunk.choices)

    def wait_for_decode(self, status: str) -> None:
        """Ask the decode node until it is ``idle`` or ``busy``; each question is a round trip."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with urllib.request.urlopen(f"{self.decode_url}/decode_status") as response:
                now = json.load(response)
            if bool(now["busy"]) == (status == "busy"):
                return
            assert time.monotonic() < deadline, f"not {status} within {PATIENCE} s: {now}"


@pytest.fixture(scope="module", params=["tcp", "nixl"])
def cluster(
    request: pytest.FixtureRequest,
    vllm_python: str,
    model_directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    transport: str = request.param
    if transport == "nixl" and not nixl_binding.installed():
        pytest.skip("NIXL is not installed here; run: pip install 'tilert-stream[nixl]'")
    logs = tmp_path_factory.mktemp(f"cluster-{transport}")
    with ExitStack() as stack:
        vllm = stack.enter_context(
            vllm_server(
                vllm_python,
                model_directory,
                logs / "vllm.log",
                connector="TilertStreamConnector",
                module="tilert_stream.nodes.vllm_connector",
                extra={"transport": transport, "staging_bytes": 400_000_000},
            )
        )
        decode = stack.enter_context(
            role(
                "decode",
                *("--model=demo", f"--transport={transport}", "--slots=2", "--max-seq-len=2048"),
                *("--ctrl-port=0", "--http-port=0"),
                log=logs / "decode.log",
                before="--decode ",
            )
        )
        address = stack.enter_context(
            role(
                "router",
                *("--model=demo", f"--served-model-name={MODEL}", "--port=0"),
                *(f"--prefill=http://127.0.0.1:{vllm.port}", f"--prefill-model={MODEL}"),
                f"--decode={decode}",
                log=logs / "router.log",
                before=f"Serving {MODEL} at ",
            )
        )
        client = stack.enter_context(OpenAI(base_url=address, api_key="none", max_retries=0))
        host, _, http_port = decode.split(":")
        yield Cluster(vllm_python, model_directory, client, f"http://{host}:{http_port}")


def text_of(whole: Whole, prompt: list[int]) -> str:
    return whole.checkpoint.tokenizer.decode(whole.answer(prompt, TOKENS))


def test_an_answer_is_that_of_the_undivided_model(cluster: Cluster, whole: Whole) -> None:
    prompt = whole.text(37)
    assert cluster.complete(prompt) == text_of(whole, prompt)


def test_prompts_in_chunks_and_with_a_prefix_hit(cluster: Cluster, whole: Whole) -> None:
    prompt = whole.text(700)
    other = prompt[:650] + whole.text(900)[850:]
    for ids in (prompt, other, prompt):
        assert cluster.complete(ids) == text_of(whole, ids)


def test_two_at_once(cluster: Cluster, whole: Whole) -> None:
    text = whole.text(1400)
    prompts = [text[700:1000], text[1000:1333]]
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(cluster.complete, prompts))
    assert answers == [text_of(whole, prompt) for prompt in prompts]


def test_a_chat(cluster: Cluster) -> None:
    stream = cluster.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    with stream:
        chunks = list(stream)
    said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert "Paris" in said
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= TOKENS


def test_a_client_that_leaves_while_vllm_prefills(cluster: Cluster, whole: Whole) -> None:
    prompt = whole.text(1900)[::-1]
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "stream": True})
    host, port = cluster.client.base_url.host, cluster.client.base_url.port
    with socket.create_connection((host, port)) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body.encode())
        )
        cluster.wait_for_decode("busy")
    cluster.wait_for_decode("idle")
    assert cluster.complete(whole.text(30)) == text_of(whole, whole.text(30))


def test_a_client_that_leaves_after_the_first_token(cluster: Cluster, whole: Whole) -> None:
    for _ in range(3):
        stream = cluster.client.completions.create(
            model=MODEL, prompt=whole.text(40), max_tokens=500, stream=True
        )
        with stream:
            next(iter(stream))
    cluster.wait_for_decode("idle")
    assert cluster.complete(whole.text(31)) == text_of(whole, whole.text(31))


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")],
)
def test_vllms_own_benchmark_sees_no_failure(
    cluster: Cluster, backend: str, endpoint: str, tmp_path: Path
) -> None:
    base = cluster.client.base_url
    command = [
        *(cluster.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        *(f"--backend={backend}", f"--endpoint={endpoint}", f"--model={MODEL}"),
        *(f"--base-url=http://{base.host}:{base.port}", f"--tokenizer={cluster.model}"),
        *("--dataset-name=random", "--random-input-len=64", "--random-output-len=16"),
        *("--num-prompts=8", "--max-concurrency=2", "--ignore-eos"),
        *("--save-result", f"--result-dir={tmp_path}", "--result-filename=result.json"),
    ]
    environment = {**os.environ, **ENVIRONMENT}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=300)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (8, 0)
    assert result["total_output_tokens"] == 8 * 16
