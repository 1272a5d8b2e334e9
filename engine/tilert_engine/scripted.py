"""A deterministic engine: tokens, times and faults by script. For tests and benchmarks.

It has the contracts of a real engine and computes nothing. What it emits is a function of the
prompt and the index, so that prefill and decode agree without talking: by default the prompt's ids
again and again, which makes a chat of echoes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilert_stream.errors import EngineFault
from tilert_stream.events import Harvest, PromptUsage, TokenBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tilert_stream.events import Limits, Sampling

__all__ = ("Script", "ScriptedDecode", "ScriptedKV", "ScriptedPrefill", "echo")


def echo(prompt_ids: Sequence[int], index: int) -> int:
    """Token number ``index`` of the answer: the prompt's ids, round and round."""
    return prompt_ids[index % len(prompt_ids)]


def _one_token(_turn: int) -> int:
    """A chain of one step."""
    return 1


def _nothing(_number: int) -> None:
    """A hook that does nothing."""


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine does, and when.

    The hooks run on the owner thread before each piece of work and get its number: a hook that
    blocks holds the engine there, one that raises ``EngineFault`` fails the request, one that
    raises anything else kills the engine. Times are in seconds.
    """

    token: Callable[[Sequence[int], int], int] = echo
    """The token at an index of the answer (0 is prefill's) to a prompt."""
    chain: Callable[[int], int] = _one_token
    """How many tokens turn number ``n`` of a sequence yields; several are like an MTP batch."""
    chunks: int = 1
    """Turns that a prompt takes."""
    prefill_time: float = 0
    chain_time: float = 0
    before_chunk: Callable[[int], None] = _nothing
    before_import: Callable[[int], None] = _nothing
    """Gets the slot."""
    before_chain: Callable[[int], None] = _nothing


@dataclass(frozen=True, slots=True)
class ScriptedKV:
    """What is handed over in place of a KV cache: the prompt."""

    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Result:
    first: TokenBatch
    kv: ScriptedKV
    usage: PromptUsage


@dataclass(slots=True)
class _Run:
    prompt_ids: tuple[int, ...]
    chunk: int = 0


@dataclass(slots=True)
class _Sequence:
    slot: int
    prompt_ids: tuple[int, ...]
    limits: Limits
    emitted: int = 1
    turn: int = 0


def _spend(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)  # the device's computing time, on the owner thread


class ScriptedPrefill:
    """A ``PrefillEngine`` by script."""

    def __init__(self, script: Script, *, max_seq_len: int = 4096) -> None:
        self._script = script
        self.max_seq_len = max_seq_len

    def open(self, prompt_ids: Sequence[int], _limits: Limits, _sampling: Sampling) -> _Run:
        """Begin a prompt."""
        return _Run(tuple(prompt_ids))

    def advance(self, run: _Run) -> _Result | None:
        """Pretend to compute one chunk."""
        self._script.before_chunk(run.chunk)
        _spend(self._script.prefill_time / self._script.chunks)
        run.chunk += 1
        if run.chunk < self._script.chunks:
            return None
        first = self._script.token(run.prompt_ids, 0)
        usage = PromptUsage(len(run.prompt_ids))
        return _Result(TokenBatch((first,)), ScriptedKV(run.prompt_ids), usage)

    def close(self, _run: _Run) -> None:
        """Nothing is held."""


class ScriptedDecode:
    """A ``DecodeEngine`` by script."""

    def __init__(self, script: Script, *, slots: int = 4, max_seq_len: int = 4096) -> None:
        self._script = script
        self.slots = slots
        self.max_seq_len = max_seq_len
        self.busy: dict[int, _Sequence] = {}
        """The open sequence of each slot."""

    def open(
        self, slot: int, kv: object, first_token: int, limits: Limits, _sampling: Sampling
    ) -> _Sequence:
        """Take the prompt over; ``first_token`` must be the script's own."""
        self._script.before_import(slot)
        if slot in self.busy:
            raise RuntimeError(f"slot {slot} is opened twice")
        if not isinstance(kv, ScriptedKV):
            raise EngineFault(f"a scripted engine takes ScriptedKV, not {type(kv).__name__}")
        if first_token != self._script.token(kv.prompt_ids, 0):
            raise EngineFault(f"first token {first_token} is not the script's")
        sequence = self.busy[slot] = _Sequence(slot, kv.prompt_ids, limits)
        return sequence

    def advance(self, sequence: _Sequence) -> Harvest:
        """Emit one chain, cut where the request's limits end it."""
        self._script.before_chain(sequence.turn)
        _spend(self._script.chain_time)
        count = self._script.chain(sequence.turn)
        start = sequence.emitted
        ids = [self._script.token(sequence.prompt_ids, start + step) for step in range(count)]
        kept, finished = sequence.limits.cut(ids, start)
        sequence.turn += 1
        sequence.emitted += kept
        stopped = finished is not None and finished.reason == "stop"
        return Harvest(TokenBatch(tuple(ids[:kept]), ends_with_stop=stopped), finished)

    def close(self, sequence: _Sequence) -> None:
        """Free the slot."""
        if self.busy.get(sequence.slot) is not sequence:
            raise RuntimeError(f"slot {sequence.slot} is closed twice")
        del self.busy[sequence.slot]
