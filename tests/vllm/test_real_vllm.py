"""What the connector reads out of a real vLLM is the KV cache of a plain forward pass."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.vllm.conftest import Whole
from tests.vllm.server import FOLDER, PIPE, VllmServer, vllm_server
from tilert_engine.layouts.gqa import GqaLayout, StagedKV
from tilert_stream.nodes.vllm_params import Destination, Grant, params_for

pytestmark = pytest.mark.vllm

CLOSE = 1e-4
"""How far sums in another order may lead, in float32, where a row's largest element is 1 or less.

vLLM rounds the angles of its rotary embedding to float32: at position 700 its keys, of which the
largest are 24, are off by 2e-4 from those of a float64 forward pass (ours by 3e-5).
"""


@dataclass
class Dumps:
    server: VllmServer
    folder: Path
    events: IO[str]
    layout: GqaLayout

    def params(self, request: str) -> dict[str, object]:
        return params_for(Destination("nowhere", 1, Grant(request, "d-1", 1)))

    def next(self, kind: str) -> str:
        """The next event of a kind; others before it are passed over."""
        return next(line.rstrip() for line in self.events if line.startswith(kind))

    def prefill(self, request: str, prompt: list[int]) -> None:
        self.server.first_token(prompt, self.params(request))

    def staged(self, request: str, tokens: int) -> StagedKV:
        staging = memoryview(bytearray((self.folder / request).read_bytes()))
        assert staging.nbytes == self.layout.staging_bytes(tokens)
        return self.layout.staged(staging, tokens)


@pytest.fixture(scope="module")
def dumps(
    vllm_python: str, model_directory: Path, whole: Whole, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dumps]:
    folder = tmp_path_factory.mktemp("dumps")
    os.mkfifo(folder / PIPE)
    # Open for both: neither this nor the writers wait for the other side.
    with (
        open(os.open(folder / PIPE, os.O_RDWR), closefd=True) as events,
        vllm_server(
            vllm_python,
            model_directory,
            folder / "vllm.log",
            connector="DumpingConnector",
            module="tests.vllm.dumping",
            environment={FOLDER: str(folder)},
        ) as server,
    ):
        layout = GqaLayout.of(whole.checkpoint, dtype="float32", max_seq_len=2048)
        yield Dumps(server, folder, events, layout)


def check(dumps: Dumps, whole: Whole, request: str, prompt: list[int]) -> None:
    staged, cache = dumps.staged(request, len(prompt)), whole.cache(prompt)
    for got, wanted in ((staged.keys, cache.keys), (staged.values, cache.values)):
        largest = wanted.abs().amax(-1, keepdim=True).clamp(min=1)
        assert ((got.transpose(1, 2) - wanted).abs() / largest).max().item() <= CLOSE


def test_a_short_prompt(dumps: Dumps, whole: Whole) -> None:
    prompt = whole.text(37)
    dumps.prefill("a1", prompt)
    assert dumps.next("sent") == f"sent a1 37 {prompt[-1]}"
    check(dumps, whole, "a1", prompt)


def test_a_prompt_in_chunks_and_one_that_hits_the_prefix_cache(dumps: Dumps, whole: Whole) -> None:
    prompt = whole.text(701)[1:]
    dumps.prefill("b1", prompt)
    assert dumps.next("sent") == f"sent b1 700 {prompt[-1]}"
    check(dumps, whole, "b1", prompt)
    other = prompt[:650] + whole.text(900)[850:]
    dumps.prefill("b2", other)
    assert dumps.next("sent") == f"sent b2 700 {other[-1]}"
    check(dumps, whole, "b2", other)


def test_two_at_once(dumps: Dumps, whole: Whole) -> None:
    text = whole.text(1400)
    prompts = {"c1": text[700:1000], "c2": text[1000:1333]}
    threads = [threading.Thread(target=dumps.prefill, args=item) for item in prompts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = {dumps.next("sent").split()[1] for _ in prompts}
    assert sent == prompts.keys()
    for request, prompt in prompts.items():
        check(dumps, whole, request, prompt)


def test_a_request_of_somebody_else_is_left_alone(dumps: Dumps, whole: Whole) -> None:
    answer = dumps.server.complete(whole.text(20), {"do_remote_decode": True})
    assert len(answer["choices"][0]["token_ids"]) == 1
    assert dumps.server.complete(whole.text(20))["choices"]
    dumps.prefill("d1", whole.text(21))
    assert dumps.next("sent").startswith("sent d1 21 ")


def test_a_client_that_leaves_during_the_prompt_withdraws_it(dumps: Dumps, whole: Whole) -> None:
    body = json.dumps(
        {
            "model": "smollm2",
            "prompt": whole.text(2000)[::-1],
            "request_id": "feed",
            "kv_transfer_params": dumps.params("e1"),
        }
    ).encode()
    with socket.create_connection(("127.0.0.1", dumps.server.port)) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        while "feed" not in dumps.next("begun"):
            pass
    reason = "vLLM ended the request (FINISHED_ABORTED) before its prompt was computed"
    assert dumps.next("withdrawn") == f"withdrawn e1 {reason}"
    dumps.prefill("e2", whole.text(22))
    assert dumps.next("sent").startswith("sent e2 22 ")
