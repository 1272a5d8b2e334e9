"""A prompt that a real vLLM preempts half-way is taken up again, and handed over whole."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.vllm.conftest import Whole
from tests.vllm.dumps import dumping_server

pytestmark = pytest.mark.vllm

SMALL_MEMORY = (
    "--num-gpu-blocks-override=10",
    "--max-model-len=1152",
    "--max-num-batched-tokens=128",
)
"""9 blocks of 128 tokens, of which a step fills one: two long requests do not fit."""


def test_a_prompt_that_is_preempted_half_way_arrives_whole(
    vllm_python: str, model_directory: Path, whole: Whole, tmp_path: Path
) -> None:
    """The first request's answer needs a second block while the prompt of the other is computed."""
    with dumping_server(
        vllm_python, model_directory, whole, tmp_path, arguments=SMALL_MEMORY
    ) as dumps:
        prompt = whole.text(900)
        first = threading.Thread(
            target=dumps.server.complete,
            args=(whole.text(1100)[-121:],),
            kwargs={"max_tokens": 40, "ignore_eos": True, "request_id": "feed"},
        )
        first.start()
        while "feed" not in dumps.next("begun"):
            pass
        dumps.prefill("f1", prompt)
        first.join()
        assert dumps.server.preemptions() >= 1
        assert dumps.next("sent") == f"sent f1 900 {prompt[-1]}"
        dumps.check(whole, "f1", prompt)
