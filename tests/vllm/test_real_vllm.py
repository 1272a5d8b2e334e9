"""What the connector reads out of a real vLLM is the KV cache of a plain forward pass."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.conftest import Whole
from tests.vllm.dumps import Dumps, dumping_server

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def dumps(
    vllm_python: str, model_directory: Path, whole: Whole, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dumps]:
    folder = tmp_path_factory.mktemp("dumps")
    with dumping_server(vllm_python, model_directory, whole, folder) as found:
        yield found


def test_a_short_prompt(dumps: Dumps, whole: Whole) -> None:
    prompt = whole.text(37)
    dumps.prefill("a1", prompt)
    assert dumps.next("sent") == f"sent a1 37 {prompt[-1]}"
    dumps.check(whole, "a1", prompt)


def test_a_prompt_in_chunks_and_one_that_hits_the_prefix_cache(dumps: Dumps, whole: Whole) -> None:
    prompt = whole.text(701)[1:]
    dumps.prefill("b1", prompt)
    assert dumps.next("sent") == f"sent b1 700 {prompt[-1]}"
    dumps.check(whole, "b1", prompt)
    other = prompt[:650] + whole.text(900)[850:]
    dumps.prefill("b2", other)
    assert dumps.next("sent") == f"sent b2 700 {other[-1]}"
    dumps.check(whole, "b2", other)


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
        dumps.check(whole, request, prompt)


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
