"""The same answers whichever way they are computed: CPU, CUDA, by graphs and without.

    python -m bench.gpu.equality [--tokens 64] [--seconds 300]

tiny-glm5 in float32 on prompts of its own, greedily and sampled, with drafts and without, in
chains of 1, 8 and 64 steps. The reference is the CPU, step by step, without drafts. Where a greedy
answer differs, the gap between the two tokens' logits is printed: below 1e-3 it is a tie.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

import torch

from tilert_engine.glm import GLMCheckpoint, GLMDecode, GLMPrefill
from tilert_engine.glm.memory import PagedMemory
from tilert_engine.glm.network import Network
from tilert_engine.models.tiny_glm5 import TINY_GLM5, TINY_GLM5_NAME
from tilert_engine.torch.lanes import ChainOptions
from tilert_stream.events import Limits, Sampling

from .device import need_device

if TYPE_CHECKING:
    from tilert_engine.glm import GLMPrefillOutput

QUESTIONS = (
    "What is a violin?",
    "Tell me about a doctor.",
    "What is a mathematician?",
    "What is a hacker, and why does the word have two meanings? " * 6,
)
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "plain": Sampling(seed=1),
    "min_p": Sampling(seed=2, min_p=0.05),
    "top_k": Sampling(0.9, top_k=20, seed=3),
    "top_p": Sampling(0.7, top_p=0.9, seed=4),
}
TIE = 1e-3
ROOM = 1024
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    device = need_device(given.device)
    end = time.monotonic() + given.seconds
    here, there = _loaded(CPU), _loaded(device)
    prompts = [_prompt(here, question) for question in QUESTIONS]
    reference = GLMDecode(here, slots=1, max_seq_len=ROOM, drafts=0)
    wrong = compared = 0
    for drafts in (3, 0):
        for steps in (1, 8, 64):
            for graphs in (True, False):
                chains = ChainOptions(on_device=True, graphs=graphs, least_window=256)
                engine = GLMDecode(
                    there,
                    slots=1,
                    max_seq_len=ROOM,
                    drafts=drafts,
                    ar_steps=steps,
                    chains=chains,
                )
                if time.monotonic() > end:
                    sys.exit(f"out of time after {compared} answers, {wrong} of them wrong")
                failed = _compare(reference, engine, here, prompts, given.tokens)
                done = len(prompts) * len(SAMPLINGS)
                how = f"{drafts} drafts, chains of {steps}, {'graphs' if graphs else 'no graphs'}"
                print(f"{how}: {done - failed} of {done} equal", flush=True)
                compared, wrong = compared + done, wrong + failed
    print(f"{compared} answers compared, {wrong} wrong")
    sys.exit(1 if wrong else 0)


def _loaded(device: torch.device) -> GLMCheckpoint:
    return GLMCheckpoint.load(TINY_GLM5, dtype=torch.float32, device=device, name=TINY_GLM5_NAME)


def _prompt(checkpoint: GLMCheckpoint, question: str) -> list[int]:
    return checkpoint.tokenizer.encode(f"[gMASK]<sop><|user|>\n{question}<|assistant|>\n").ids


def _compare(
    reference: GLMDecode,
    engine: GLMDecode,
    checkpoint: GLMCheckpoint,
    prompts: list[list[int]],
    tokens: int,
) -> int:
    prefill = GLMPrefill(checkpoint, max_seq_len=ROOM)
    wrong = 0
    for prompt in prompts:
        for name, sampling in SAMPLINGS.items():
            stops = frozenset[int]() if name == "greedy" else checkpoint.eos_ids
            limits = Limits(tokens, min_tokens=tokens // 2, eos_ids=stops)
            output = _prefilled(prefill, prompt, limits, sampling)
            want = _answer(reference, output, limits, sampling)
            got = _answer(engine, output, limits, sampling)
            if got == want:
                continue
            place = next(i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b)
            gap = _gap(checkpoint, prompt + want[:place], want[place], got[place])
            tie = name == "greedy" and gap < TIE
            print(f"  {name}, token {place}: {got[place]} for {want[place]}, gap {gap:.2e}")
            wrong += not tie
    return wrong


def _prefilled(
    engine: GLMPrefill, prompt: list[int], limits: Limits, sampling: Sampling
) -> GLMPrefillOutput:
    run = engine.open(prompt, limits, sampling)
    while (output := engine.advance(run)) is None:
        pass
    return output


def _answer(
    engine: GLMDecode, output: GLMPrefillOutput, limits: Limits, sampling: Sampling
) -> list[int]:
    ids = list(output.first.ids)
    sequence = engine.open(0, output.kv, ids[0], limits, sampling)
    finished = None
    while finished is None:
        harvest = engine.advance(sequence)
        ids += harvest.batch.ids
        finished = harvest.finished
    engine.close(sequence)
    return ids


@torch.inference_mode()
def _gap(checkpoint: GLMCheckpoint, ids: list[int], one: int, other: int) -> float:
    network = Network(checkpoint.config, checkpoint.weights, len(ids))
    memory = PagedMemory(checkpoint.config, checkpoint.weights, len(ids), "fp8_ds_mla")
    logits = network.logits(network.hidden(torch.tensor(ids), 0, memory)[-1:])[0]
    return abs(float(logits[one] - logits[other]))


if __name__ == "__main__":
    main()
