"""The decode engine: a KV cache in, chains of token ids out.

Prefill's cache is copied into the slot's own region; from then on nothing is shared with prefill
but the read-only weights.

On CUDA the device takes a chain's steps by itself (``Lane``). On a CPU, where a token read costs
nothing, the host takes them one by one: attention then reads no position more than there are, and
a chain ends at its stop token.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from tilert_engine.accounting import Ledger
from tilert_engine.chains import DEFAULT_AR_STEPS, ChainPlanner
from tilert_engine.layouts.host_memory import page_locked
from tilert_stream.errors import ConfigError, EngineFault

from .chained import LlamaStep
from .kv_cache import KVCache
from .lanes import ChainOptions, make_lanes
from .llama import KVBuffer, Llama
from .prefill import check_window
from .sampler import make_sampler, sampler_capabilities

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tilert_stream.events import Capability, Harvest, Limits, Sampling, TokenLogprob

    from .checkpoint import Checkpoint
    from .grammar import Grammars
    from .lane import Lane
    from .sampler import Sampler

__all__ = ("DecodeSequence", "TorchDecode")


@dataclass(slots=True, eq=False)
class DecodeSequence:
    """One sequence in a slot."""

    slot: int
    ledger: Ledger
    """Its tokens and steps, counted."""
    sampler: Sampler
    buffer: KVBuffer
    """The slot's region."""
    length: int
    """Positions in ``buffer`` that are this sequence's."""
    last: torch.Tensor
    """The newest token, ``[1]``: not yet in ``buffer``."""
    lane: Lane | None = None
    """What takes its steps, where the device does: it alone then knows how far they are."""


class TorchDecode:
    """A ``DecodeEngine`` on a checkpoint.

    :param slots: sequences that can be open at once; each has ``max_seq_len`` positions of KV.
    :param max_seq_len: tokens of prompt and answer together.
    :param ar_steps: the longest chain, in steps of one token.
    :param chains: how its steps are taken; None: as is fastest on the device.
    :param grammars: what holds answers to a grammar; such an answer's steps are taken by the host.
    :raises ~tilert_stream.errors.ConfigError: a parameter that is out of range.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        slots: int,
        max_seq_len: int,
        ar_steps: int = DEFAULT_AR_STEPS,
        chains: ChainOptions | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        check_window(checkpoint, max_seq_len)
        if slots < 1:
            raise ConfigError(f"slots is {slots}; it must be at least 1")
        self.slots = slots
        self.max_seq_len = max_seq_len
        self._planner = ChainPlanner(ar_steps)
        self._name = checkpoint.name
        self._llama = Llama(checkpoint, max_seq_len)
        self._cache = self._llama.buffer(slots, positions=max_seq_len)
        self._open: dict[int, DecodeSequence] = {}
        self.grammars = grammars
        # Row 0: ids (exact in float64), row 1: highest logits. One tensor, so that a chain is read
        # back in one copy.
        self._chain = torch.empty(2, ar_steps, dtype=torch.float64, device=self._llama.device)
        self._lanes = make_lanes(
            chains or ChainOptions(),
            lambda slot, state: LlamaStep(self._llama, self._region(slot), state),
            self._planner,
            device=self._llama.device,
            slots=slots,
            vocab=self._llama.config.vocab_size,
            max_seq_len=max_seq_len,
            positions=max_seq_len,
        )

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All that a sampler can do, and grammars where they are installed."""
        return sampler_capabilities(self.grammars)

    def check_grammar(self, grammar: str, param: str, /) -> None:
        """Compile ``grammar``, from any thread.

        :raises ~tilert_stream.errors.InvalidRequest: it cannot be followed.
        """
        if self.grammars is not None:
            self.grammars.check(grammar, param)

    def _region(self, slot: int) -> KVBuffer:
        return KVBuffer(self._cache.keys[slot], self._cache.values[slot])

    def landing(self, memory: memoryview, /) -> AbstractContextManager[None]:
        """Have the device read ``memory``, in which KV caches will land, at its bus's full rate."""
        return page_locked(memory, self._llama.device)

    @torch.inference_mode()
    def open(
        self, slot: int, kv: object, first_token: int, limits: Limits, sampling: Sampling, /
    ) -> DecodeSequence:
        """Copy ``kv`` into ``slot``.

        :raises ~tilert_stream.errors.EngineFault: a KV cache that this model does not take, or one
            that leaves no room for ``limits.max_tokens``.
        :raises RuntimeError: the slot is busy, or no slot of this engine.
        """
        if not 0 <= slot < self.slots:
            raise RuntimeError(f"slot {slot} does not exist; there are {self.slots}")
        if slot in self._open:
            raise RuntimeError(f"slot {slot} is busy; close its sequence first")
        cache = self._checked(kv, first_token, limits)
        region = self._region(slot)
        sequence = DecodeSequence(
            slot=slot,
            ledger=Ledger(limits),
            sampler=make_sampler(sampling, self.grammars),
            buffer=region,
            length=cache.seq_len,
            last=torch.tensor([first_token]),
        )
        if not self._lanes:
            sequence.last = sequence.last.to(self._llama.device)
            _fill(region, cache.keys, cache.values)
        else:
            self._begin(self._lanes[slot], sequence, cache, sampling)
        if sequence.sampler.remembers and sequence.lane is None:
            sequence.sampler.begin(first_token)
        self._open[slot] = sequence
        return sequence

    def _begin(
        self, lane: Lane, sequence: DecodeSequence, cache: KVCache, sampling: Sampling
    ) -> None:
        # From the host to the device on the thread's own stream: chains that run go on meanwhile.
        keys, values = (each.to(self._llama.device) for each in (cache.keys, cache.values))
        with lane.importing(keys, values):
            by_lane = sampling.grammar is None
            if by_lane:
                lane.expect(sequence.length, sequence.ledger, sampling)
            _fill(sequence.buffer, keys, values)
            if by_lane:
                sequence.lane = lane
                lane.begin(int(sequence.last), sequence.ledger, sampling)
            else:
                sequence.last = sequence.last.to(self._llama.device)

    @torch.inference_mode()
    def advance(self, sequence: DecodeSequence, /) -> Harvest:
        """Run one chain of at most ``ar_steps`` steps, never more than the budget.

        :raises ~tilert_stream.errors.EngineFault: the logits are not finite.
        :raises RuntimeError: the sequence is closed or has finished.
        """
        if self._open.get(sequence.slot) is not sequence:
            raise RuntimeError("this sequence is closed")
        if sequence.ledger.finished is not None:
            raise RuntimeError("this sequence has finished; close it")
        if sequence.lane is not None:
            return sequence.lane.harvest(sequence.ledger)
        with self._lanes[sequence.slot].entered() if self._lanes else nullcontext():
            ids, peaks, logprobs = self._run_chain(sequence)
        harvest = sequence.ledger.take(ids, [1] * len(ids), logprobs)
        consumed = peaks[: len(harvest.batch.ids)]
        if not all(math.isfinite(peak) for peak in consumed):
            raise EngineFault(
                f"the highest logits are {consumed}, not all finite: the weights or the dtype "
                "overflow; try another dtype"
            )
        return harvest

    def close(self, sequence: DecodeSequence, /) -> None:
        """Free the slot.

        :raises RuntimeError: it is not this sequence's any more.
        """
        if self._open.get(sequence.slot) is not sequence:
            raise RuntimeError("this sequence is closed")
        del self._open[sequence.slot]

    def _run_chain(
        self, sequence: DecodeSequence
    ) -> tuple[list[int], list[float], list[TokenLogprob] | None]:
        ledger, sampler = sequence.ledger, sequence.sampler
        told: list[TokenLogprob] | None = None if sampler.logprobs is None else []
        limits = ledger.limits
        steps = self._planner.length(ledger.remaining)
        ends = limits.eos_ids | limits.stop_ids
        made = 0
        for made in range(1, steps + 1):
            index = ledger.emitted + made - 1
            hidden = self._llama.hidden(sequence.last, sequence.length, sequence.buffer)
            sequence.length += 1
            logits = self._llama.logits(hidden)
            raw = logits if told is None else logits.clone()
            drawn, peak = sampler.draw(logits, index, masked=limits.stop_mask(index))
            if told is not None:
                told += sampler.score(raw, drawn)
            if sampler.remembers:
                sampler.note(drawn)
            sequence.last = drawn.view(1)
            self._chain[0, made - 1] = drawn
            self._chain[1, made - 1] = peak
            if ends and int(drawn) in ends:
                break
        rows = cast("list[list[float]]", self._chain[:, :made].tolist())  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
        return [int(token) for token in rows[0]], rows[1], told

    def _checked(self, kv: object, first_token: int, limits: Limits) -> KVCache:
        if not isinstance(kv, KVCache):
            raise EngineFault(
                f"the KV cache is a {type(kv).__name__}, this engine takes a KVCache; "
                "pair it with the torch prefill engine"
            )
        config = self._llama.config
        needed = (config.layers, config.kv_heads, kv.seq_len, config.head_dim)
        for what, got, want in (
            ("model", kv.model, self._name),
            ("shape of keys", tuple(kv.keys.shape), needed),
            ("shape of values", tuple(kv.values.shape), needed),
            ("dtype of keys", kv.keys.dtype, self._llama.dtype),
            ("dtype of values", kv.values.dtype, self._llama.dtype),
        ):
            if got != want:
                raise EngineFault(
                    f"the KV cache's {what} is {got}, this engine's is {want}; prefill and decode "
                    "must load the same model with the same dtype"
                )
        if kv.seq_len + limits.max_tokens > self.max_seq_len:
            raise EngineFault(
                f"the prompt's {kv.seq_len} tokens and max_tokens {limits.max_tokens} are more "
                f"than the engine's max_seq_len {self.max_seq_len}; ask for fewer tokens"
            )
        if not 0 <= first_token < config.vocab_size:
            raise EngineFault(
                f"the first token's id is {first_token}; ids are 0 to {config.vocab_size - 1}"
            )
        return kv


def _fill(region: KVBuffer, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Copy a prompt's cache; what is behind it becomes zero.

    Attention over a window of fixed size multiplies what it must not see by zero, and a NaN that an
    earlier sequence has left there would come through.
    """
    length = keys.shape[2]
    for target, source in ((region.keys, keys), (region.values, values)):
        target[:, :, :length].copy_(source)
        target[:, :, length:].zero_()
