"""TileRT's table, ours: forwards a second on the whole way, and of two bare loops on its engine.

    python -m bench.gpu.table [--rows mtp-1k plain-1k mtp-8k plain-8k hard-1k] [--pairs 7]
        [--seconds 560]

``serial`` takes a chain, reads it, takes the next; ``ahead`` enqueues the next before it reads;
``whole`` is router → decode node → client over sockets, the engine enqueuing ahead. All three in
turn, so that a clock that drifts meets all. A rate counts forwards from the first harvest on; the
whole way's ends when ``[DONE]`` is at the client. Differences are those of a round's rates, with
their 95 % interval. Then come many short answers, each beside the same prompt asked of the prefill
node itself; ``--pairs 0`` does only those.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from tilert_engine.glm import GLMDecode
from tilert_engine.layouts.mla_nsa_cache import ImportedKV, import_planes
from tilert_engine.torch.lanes import ChainOptions
from tilert_stream.events import Limits, Sampling

from .cluster import running
from .device import interval, need_device
from .model import random_cache, random_checkpoint
from .synthetic import FIRST, TimedDecode

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tilert_engine.glm import GLMCheckpoint

    from .cluster import Answer, Cluster

AR_STEPS: Final = 8
DRAFTS: Final = 3
GREEDY: Final = Sampling(temperature=0)
MODELS: Final = {"mtp": (5.3, DRAFTS), "plain": (3.4, 0), "hard": (1.0, 0)}
"""Milliseconds of a step behind a prompt of 1k, and drafts."""
PREFILL_SECONDS: Final = 0.05


@dataclass
class Rates:
    """Forwards a second, a round each, and what the whole way's requests met."""

    serial: list[float] = field(default_factory=list[float])
    ahead: list[float] = field(default_factory=list[float])
    whole: list[float] = field(default_factory=list[float])
    beyond: int = 0
    gaps: list[float] = field(default_factory=list[float])

    def line(self, name: str) -> str:
        against_ahead, width = interval(_differences(self.whole, self.ahead))
        against_serial, other = interval(_differences(self.whole, self.serial))
        rates = (sum(rates) / len(rates) for rates in (self.serial, self.ahead, self.whole))
        return (
            f"{name:9} {len(self.whole)} rounds, forwards/s: "
            + " ".join(f"{label} {rate:.2f}" for label, rate in zip(_LABELS, rates, strict=True))
            + f" | whole against ahead {against_ahead:+.3f} % ± {width:.3f}"
            f" (wanted: within ± 0.2), against serial {against_serial:+.3f} % ± {other:.3f}"
            f" (wanted: above 0) | beyond the minimum {self.beyond} (wanted: 0)"
            f" | end {max(self.gaps):.2f} ms at most (wanted: 1)"
        )


_LABELS: Final = ("serial", "ahead", "whole")


def _differences(ours: list[float], theirs: list[float]) -> list[float]:
    return [(one / other - 1) * 100 for one, other in zip(ours, theirs, strict=True)]


def main() -> None:
    names = ["mtp-1k", "plain-1k", "mtp-8k", "plain-8k", "hard-1k"]
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", nargs="+", choices=[*names, "hard-8k"], default=names)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny widths: does the script work?")
    parser.add_argument("--layers", type=int, help="instead of as many as a step's time asks for")
    parser.add_argument("--short", type=int, default=60, help="short requests for the percentiles")
    given = parser.parse_args()
    device = need_device(given.device)
    bench = Bench(device, given, time.monotonic() + given.seconds)
    for kind in MODELS:
        prompts = [row.split("-")[1] for row in given.rows if row.split("-")[0] == kind]
        if prompts:
            anyio.run(bench.measure, kind, prompts)


@dataclass
class Bench:
    """All rows of one model are measured on one engine."""

    device: torch.device
    given: argparse.Namespace
    end: float

    @staticmethod
    def _prompt(name: str) -> int:
        return {"1k": 1024, "8k": 8192}[name]

    @property
    def _longest(self) -> int:
        tokens: int = self.given.tokens
        return tokens + 8192 + 64

    def _engine(self, model: GLMCheckpoint, drafts: int, *, ahead: bool = True) -> GLMDecode:
        # A window of its own for each prompt: a step's cost changes with the window.
        least = self._prompt("1k") + int(self.given.tokens) + 64
        return GLMDecode(
            model,
            slots=1,
            max_seq_len=self._longest,
            ar_steps=AR_STEPS,
            drafts=drafts,
            chains=ChainOptions(on_device=True, ahead=ahead, early=False, least_window=least),
        )

    def _checkpoint(self, layers: int) -> GLMCheckpoint:
        positions = self._longest
        return random_checkpoint(
            layers, positions=positions, device=self.device, small=self.given.small
        )

    def _cache(self, model: GLMCheckpoint, prompt: int) -> ImportedKV:
        cached = random_cache(model, prompt)
        return import_planes(model.name, cached.planes, device=self.device)

    def _layers(self, milliseconds: float, drafts: int) -> int:
        """As many as bring a step to ``milliseconds``, by the line through two measured depths."""
        if self.given.layers is not None:
            return int(self.given.layers)
        depths = (3, 9)
        took: list[float] = []
        for layers in depths:
            model = self._checkpoint(layers)
            engine = TimedDecode(self._engine(model, drafts))
            cache = self._cache(model, self._prompt("1k"))
            _bare(engine, cache, 64 * (drafts + 1))
            moments, steps, _ = _bare(engine, cache, 64 * (drafts + 1))
            took.append((moments[-1] - moments[0]) / 1e6 / (steps[-1] - steps[0]))
        slope = (took[1] - took[0]) / (depths[1] - depths[0])
        layers = max(1, round(depths[1] + (milliseconds - took[1]) / slope))
        print(f"a step takes {took[0]:.3f} ms with 3 layers and {took[1]:.3f} with 9", flush=True)
        return layers

    async def measure(self, kind: str, prompts: list[str]) -> None:
        milliseconds, drafts = MODELS[kind]
        layers = self._layers(milliseconds, drafts)
        model = self._checkpoint(layers)
        serial = TimedDecode(self._engine(model, drafts, ahead=False))
        ahead = TimedDecode(self._engine(model, drafts))
        print(f"{kind}: {layers} layers, {drafts} drafts", flush=True)
        async with running(model, ahead, PREFILL_SECONDS) as cluster:
            for name in prompts:
                prompt, tokens = self._prompt(name), int(self.given.tokens)
                cache, rates = self._cache(model, prompt), Rates()
                for number in range(1 + int(self.given.pairs)):
                    if number > 3 and time.monotonic() > self.end:
                        break
                    bare = partial(_off_loop, _bare, cache=cache, tokens=tokens)
                    one = await bare(serial)
                    two = await bare(ahead)
                    answer = await cluster.ask(prompt, tokens)
                    if number:  # the first warms up
                        self._note(rates, one, two, answer)
                if rates.whole:
                    print(rates.line(f"{kind}-{name}"), flush=True)
                await self._short(cluster, f"{kind}-{name}", prompt)

    @staticmethod
    def _note(rates: Rates, one: Bare, two: Bare, answer: Answer) -> None:
        rates.serial.append(_rate(one[0], one[1], one[0][-1]))
        rates.ahead.append(_rate(two[0], two[1], two[0][-1]))
        rates.whole.append(_rate(answer.moments, answer.steps, answer.done))
        rates.beyond += one[2] + two[2] + answer.overrun
        rates.gaps.append(_gap(answer))

    async def _short(self, cluster: Cluster, name: str, prompt: int) -> None:
        """First tokens and ends of many short answers."""
        answers: list[Answer] = []
        direct: list[float] = []
        for _ in range(int(self.given.short)):
            if time.monotonic() > self.end:
                break
            direct.append(await cluster.ask_prefill(prompt))
            answers.append(await cluster.ask(prompt, 4 * AR_STEPS))
        if not answers:
            return
        through = [_ms(answer.asked, answer.first) for answer in answers]
        before = [_ms(answer.asked, answer.computed[0]) for answer in answers]
        after = [_ms(answer.computed[1], answer.first) for answer in answers]
        more = [ours - theirs for ours, theirs in zip(through, direct, strict=True)]
        print(
            f"  {name}: {len(answers)} short answers, ms: first token {_spread(through)};"
            f" prefill itself answers in {_spread(direct)}, more by {_spread(more)} (wanted: 2);"
            f" before prefill computes {_spread(before)}, after it {_spread(after)} (wanted: 2);"
            f" last harvest to [DONE] {_spread([_gap(answer) for answer in answers])} (wanted: 1)",
            flush=True,
        )


Bare = tuple[list[int], list[int], int]
"""Moments, forwards by then, and forwards beyond the minimum."""


def _bare(engine: TimedDecode, cache: ImportedKV, tokens: int) -> Bare:
    sequence = engine.open(0, cache, FIRST, Limits(tokens), GREEDY)
    while engine.advance(sequence).finished is None:
        pass
    engine.close(sequence)
    return engine.moments, engine.steps, sequence.ledger.overrun


async def _off_loop(
    call: Callable[[TimedDecode, ImportedKV, int], Bare],
    engine: TimedDecode,
    *,
    cache: ImportedKV,
    tokens: int,
) -> Bare:
    return await anyio.to_thread.run_sync(call, engine, cache, tokens)


def _rate(moments: list[int], steps: list[int], end: int) -> float:
    return (steps[-1] - steps[0]) / (end - moments[0]) * 1e9


def _ms(begin: int, end: int) -> float:
    return (end - begin) / 1e6


def _gap(answer: Answer) -> float:
    return _ms(answer.moments[-1], answer.done)


def _spread(values: list[float]) -> str:
    return f"p50 {_at(values, 0.5):.2f} p90 {_at(values, 0.9):.2f} p99 {_at(values, 0.99):.2f}"


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


if __name__ == "__main__":
    main()
