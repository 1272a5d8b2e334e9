"""What the roles serve in these benchmarks: a random model's decode engine, a prefill that waits.

A decode node imports what a prefill node sends, byte for byte; only nobody has computed it. So a
prompt costs the time that is given, and a request's other times are the host's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_stream.config import RouterConfig
from tilert_stream.events import PromptUsage, TokenBatch
from tilert_stream.serve.front import model_front

from .model import random_cache

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from tilert_engine.glm import GLMCheckpoint, GLMDecode, GLMSequence
    from tilert_engine.layouts.mla_nsa_cache import CachedKV
    from tilert_stream.events import Harvest, Limits, Sampling

__all__ = ("ServedDecode", "ServedPrefill", "TimedDecode", "WaitingPrefill")

FIRST = 100
"""The first token of every answer."""


@dataclass(frozen=True, slots=True)
class WaitingOutput:
    first: TokenBatch
    kv: CachedKV
    usage: PromptUsage


@dataclass
class WaitingRun:
    tokens: int
    begun: int = 0
    """Nanoseconds of ``CLOCK_MONOTONIC``, like ``ended``."""
    ended: int = 0


class WaitingPrefill:
    """A ``PrefillEngine`` that takes ``seconds`` for any prompt, and prints from when to when."""

    def __init__(self, checkpoint: GLMCheckpoint, seconds: float, max_seq_len: int) -> None:
        self.max_seq_len = max_seq_len
        self._checkpoint = checkpoint
        self._seconds = seconds
        self._known: dict[int, CachedKV] = {}

    def open(
        self, prompt_ids: Sequence[int], _limits: Limits, _sampling: Sampling, /
    ) -> WaitingRun:
        return WaitingRun(len(prompt_ids))

    def advance(self, run: WaitingRun, /) -> WaitingOutput:
        run.begun = time.monotonic_ns()
        tokens = run.tokens
        kv = self._known.get(tokens)
        if kv is None:
            kv = self._known[tokens] = random_cache(self._checkpoint, tokens)
        time.sleep(self._seconds)
        run.ended = time.monotonic_ns()
        return WaitingOutput(TokenBatch((FIRST,)), kv, PromptUsage(tokens))

    def close(self, run: WaitingRun, /) -> None:
        # The answer is on its way by now: printing does not hold it up.
        print("computed", run.begun, run.ended, flush=True)


@dataclass
class TimedDecode:
    """A ``DecodeEngine`` that notes when its chains had been read."""

    engine: GLMDecode
    moments: list[int] = field(default_factory=list[int])
    """Nanoseconds of ``CLOCK_MONOTONIC``; of the last sequence."""
    steps: list[int] = field(default_factory=list[int])
    """Forwards, as counted at each of them."""
    ended: GLMSequence | None = None
    """The last sequence that was closed."""

    @property
    def slots(self) -> int:
        return self.engine.slots

    @property
    def max_seq_len(self) -> int:
        return self.engine.max_seq_len

    def landing(self, memory: memoryview, /) -> AbstractContextManager[None]:
        return self.engine.landing(memory)

    def open(
        self, slot: int, kv: object, first_token: int, limits: Limits, sampling: Sampling, /
    ) -> GLMSequence:
        self.moments, self.steps = [], []
        return self.engine.open(slot, kv, first_token, limits, sampling)

    def advance(self, sequence: GLMSequence, /) -> Harvest:
        harvest = self.engine.advance(sequence)
        self.moments.append(time.monotonic_ns())
        self.steps.append(sequence.ledger.forwards)
        return harvest

    def close(self, sequence: GLMSequence, /) -> None:
        self.engine.close(sequence)
        self.ended = sequence


class _Served:
    def __init__(self, checkpoint: GLMCheckpoint, max_seq_len: int) -> None:
        self.checkpoint = checkpoint
        self.max_seq_len = max_seq_len
        config = RouterConfig(model="tiny-glm5", max_seq_len=max_seq_len)
        self.front = model_front(checkpoint, config, max_seq_len)

    @property
    def layout(self) -> MlaNsaLayout:
        device = str(self.checkpoint.weights.device)
        return MlaNsaLayout(
            model=self.checkpoint.cached,
            dtype="fp8_ds_mla",
            max_seq_len=self.max_seq_len,
            device=device,
        )


class ServedDecode(_Served):
    """A ``Model`` that decodes."""

    def __init__(self, checkpoint: GLMCheckpoint, decode: TimedDecode) -> None:
        super().__init__(checkpoint, decode.max_seq_len)
        self.decode = decode

    @property
    def prefill(self) -> Any:
        raise RuntimeError("this node computes no prompts")


class ServedPrefill(_Served):
    """A ``Model`` that prefills."""

    def __init__(self, checkpoint: GLMCheckpoint, seconds: float, max_seq_len: int) -> None:
        super().__init__(checkpoint, max_seq_len)
        self.prefill = WaitingPrefill(checkpoint, seconds, max_seq_len)

    @property
    def decode(self) -> Any:
        raise RuntimeError("this node decodes nothing")
