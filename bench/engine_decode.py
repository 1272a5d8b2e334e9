"""Decode speed of the torch engine: tokens/s by the clock, and CPU time a token.

    python bench/engine_decode.py MODEL [--tokens 200] [--threads 1 2] [--chain 1 8]

On a machine that others use too, compare CPU times.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

from tilert_engine.torch import Built, build
from tilert_stream.events import Limits, Sampling

PROMPT = list(range(100, 116))


@dataclass(frozen=True)
class Spent:
    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Spent:
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: Spent) -> Spent:
        return Spent(self.wall - start.wall, self.cpu - start.cpu)


def decode(built: Built, tokens: int) -> Spent:
    limits, greedy = Limits(tokens + 1), Sampling(temperature=0)
    run = built.prefill.open(PROMPT, limits, greedy)
    output = built.prefill.advance(run)
    if output is None:
        raise RuntimeError("the prompt is longer than one chunk")
    sequence = built.decode.open(0, output.kv, output.first.ids[0], limits, greedy)
    start = Spent.now()
    while built.decode.advance(sequence).finished is None:
        pass
    spent = Spent.now().since(start)
    built.decode.close(sequence)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, nargs="+", default=[os.cpu_count() or 1])
    parser.add_argument("--chain", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    for threads in options.threads:
        for chain in options.chain:
            start = Spent.now()
            built = build(
                options.model,
                slots=1,
                max_seq_len=options.tokens + len(PROMPT) + 1,
                ar_steps=chain,
                device=options.device,
                dtype=options.dtype,
                threads=threads,
            )
            loading = Spent.now().since(start)
            decode(built, 8)
            spent = decode(built, options.tokens)
            print(
                f"threads {threads}  chain {chain}  load {loading.wall:5.2f} s"
                f"  {options.tokens / spent.wall:6.1f} tokens/s"
                f"  {spent.cpu / options.tokens * 1e3:6.1f} ms CPU a token"
            )


if __name__ == "__main__":
    main()
