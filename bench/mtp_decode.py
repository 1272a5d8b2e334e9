"""Decode speed of tiny-glm5 with drafts and without: tokens/s, and what a step accepts.

    python -m bench.mtp_decode [--tokens 200] [--rounds 15] [--threads 2] [--drafts 0 1 2 3 4]

All are measured in turn, round after round, so that whatever else runs on the machine meets all;
a speed-up is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field

from tilert_engine.glm import Built, build
from tilert_stream.events import Limits, Sampling

QUESTIONS = ("What is a violin?", "Tell me about a doctor.", "What is a mathematician?")


@dataclass
class Measured:
    built: Built
    rates: list[float] = field(default_factory=list[float])
    tokens: int = 0
    steps: int = 0

    def answer(self, question: str, tokens: int) -> float:
        """Seconds for ``tokens`` tokens after the first, stop tokens ignored."""
        tokenizer = self.built.checkpoint.tokenizer
        prompt = tokenizer.encode(f"[gMASK]<sop><|user|>\n{question}<|assistant|>\n").ids
        limits, greedy = Limits(tokens + 1), Sampling(temperature=0)
        run = self.built.prefill.open(prompt, limits, greedy)
        output = self.built.prefill.advance(run)
        if output is None:
            raise RuntimeError("the prompt is longer than one chunk")
        sequence = self.built.decode.open(0, output.kv, output.first.ids[0], limits, greedy)
        start = time.perf_counter()
        while self.built.decode.advance(sequence).finished is None:
            pass
        spent = time.perf_counter() - start
        self.built.decode.close(sequence)
        self.tokens += sequence.ledger.accepted
        self.steps += sequence.ledger.forwards
        return spent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    given = parser.parse_args()
    measured = {
        drafts: Measured(build(slots=1, drafts=drafts, threads=given.threads))
        for drafts in given.drafts
    }
    for round_number in range(given.rounds + 1):
        for each in measured.values():
            spent = sum(each.answer(question, given.tokens) for question in QUESTIONS)
            if round_number:  # the first warms up
                each.rates.append(len(QUESTIONS) * given.tokens / spent)
    base = measured[given.drafts[0]]
    for drafts, each in measured.items():
        ratios = [rate / first for rate, first in zip(each.rates, base.rates, strict=True)]
        print(
            f"{drafts} drafts: {statistics.median(each.rates):5.0f} tokens/s"
            f" ({min(each.rates):.0f} to {max(each.rates):.0f}),"
            f" {each.tokens / each.steps:.2f} tokens a step,"
            f" {statistics.median(ratios):.2f} times {given.drafts[0]} drafts"
        )


if __name__ == "__main__":
    main()
