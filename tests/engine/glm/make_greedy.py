"""Writes ``greedy.json``: what tiny-glm5 says greedily, with margins.

Once by the reference alone, and once by the network over a cache in fp8, a token a step.

::

    python -m tests.engine.glm.make_greedy
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import torch

from tests.engine.glm.asking import GREEDY, STORED, Answer, prefill
from tests.engine.glm.reference import Reference
from tilert_engine.glm import Built, build
from tilert_engine.glm.memory import Memory, PagedMemory
from tilert_engine.glm.network import Network
from tilert_engine.layouts.mla_nsa_cache import CachedKV, import_planes
from tilert_engine.models.tiny_glm5 import TINY_GLM5
from tilert_stream.events import Limits

QUESTIONS = (
    "What is a violin?",
    "What is a lake?",
    "Tell me about a doctor.",
    "What does quickly mean?",
    "Hello",
)
TOKENS = 40


def main() -> None:
    built = build()
    tokenizer = built.checkpoint.tokenizer
    reference = Reference(TINY_GLM5)
    prompts = [
        tokenizer.encode(f"[gMASK]<sop><|user|>\n{question}<|assistant|>\n").ids
        for question in QUESTIONS
    ]
    talk = "".join(
        f"<|user|>\n{question}<|assistant|>\nA violin is a bowed stringed instrument that is the"
        " highest member of the violin family."
        for question in QUESTIONS[:3]
    )
    text = f"[gMASK]<sop>{talk}<|user|>\nWhat is gold?<|assistant|>\n"
    prompts.append(tokenizer.encode(text).ids)
    answers = [
        asdict(answered(cache, prompt, logits))
        for prompt in prompts
        for cache, logits in (("", reference_logits(reference)), ("fp8_ds_mla", steps(built)))
    ]
    STORED.write_text("[\n" + ",\n".join(map(json.dumps, answers)) + "\n]\n")


def answered(
    cache: str, prompt: list[int], logits: Callable[[list[int], list[int]], torch.Tensor]
) -> Answer:
    ids: list[int] = []
    margins: list[float] = []
    while len(ids) < TOKENS:
        best = logits(prompt, ids).topk(2)
        ids.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 5))
    return Answer(cache, prompt, ids, margins)


def reference_logits(reference: Reference) -> Callable[[list[int], list[int]], torch.Tensor]:
    return lambda prompt, ids: reference.logits([*prompt, *ids])[-1]


def steps(built: Built) -> Callable[[list[int], list[int]], torch.Tensor]:
    checkpoint = built.checkpoint
    network = Network(checkpoint.config, checkpoint.weights, 512)
    memory = Memory(checkpoint.config, checkpoint.weights, 512)

    @torch.inference_mode()
    def logits(prompt: list[int], ids: list[int]) -> torch.Tensor:
        if not ids:
            kv = prefill(built.prefill, prompt, Limits(TOKENS), GREEDY).kv
            assert isinstance(kv, CachedKV)
            memory.fill(import_planes(kv.model, kv.planes))
            hidden = network.hidden(torch.tensor(prompt), 0, fresh(built, len(prompt)))
        else:
            hidden = network.hidden(torch.tensor(ids[-1:]), len(prompt) + len(ids) - 1, memory)
        return network.logits(hidden[-1:])[0]

    return logits


def fresh(built: Built, positions: int) -> PagedMemory:
    checkpoint = built.checkpoint
    return PagedMemory(checkpoint.config, checkpoint.weights, positions, built.cache_dtype)


if __name__ == "__main__":
    main()
