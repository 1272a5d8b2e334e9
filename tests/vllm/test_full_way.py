"""A real vLLM prefills, a decode node decodes, a router streams: over each transport."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import OpenAI

from tests.vllm.conftest import Whole
from tests.vllm.roles import role
from tests.vllm.server import VllmServer, vllm_server

pytestmark = pytest.mark.vllm

TOKENS = 12
MODEL = "smollm2"


@dataclass
class Cluster:
    vllm: VllmServer
    client: OpenAI

    def complete(self, prompt: list[int]) -> str:
        """A streamed, greedy answer."""
        stream = self.client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True
        )
        with stream:
            return "".join(choice.text for chunk in stream for choice in chunk.choices)


@pytest.fixture(scope="module", params=["tcp", "nixl"])
def cluster(
    request: pytest.FixtureRequest,
    vllm_python: str,
    model_directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    transport: str = request.param
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
        yield Cluster(vllm, client)


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
