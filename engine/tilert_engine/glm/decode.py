"""The decode engine: an imported KV cache in, chains of token ids out, with multi-token prediction.

A step verifies drafts: the main model runs over the newest token and the drafts after it, and draws
its own token at every place, with the uniform number of that place. Drafts are kept as long as they
are what was drawn. So the answer is that of the model without drafts, sampled or not: what a seed
gives does not depend on MTP, and no correction of the distribution is needed. Then the draft layer
runs over what was kept, and over its own drafts, to make the next ones; it draws with the uniform
number of the place that it guesses, which makes it the likelier to be right.

On CUDA the device takes a chain's steps by itself (``GLMStep``, ``Lane``). On a CPU the host takes
them one by one: nothing is computed that does not count, and a chain ends where the answer does.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tilert_engine.accounting import Ledger
from tilert_engine.chains import ChainPlanner
from tilert_engine.layouts.host_memory import page_locked
from tilert_engine.layouts.mla_nsa_cache import CachedKV, ImportedKV, import_planes
from tilert_engine.torch.lanes import ChainOptions, make_lanes
from tilert_engine.torch.sampler import make_sampler, sampler_capabilities
from tilert_stream.errors import ConfigError, EngineFault

from .chained import GLMStep
from .memory import Memory
from .network import Network
from .prefill import check_window

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tilert_engine.torch.grammar import Grammars
    from tilert_engine.torch.lane import Lane
    from tilert_engine.torch.sampler import Sampler
    from tilert_stream.events import Capability, Harvest, Limits, Sampling, TokenLogprob

    from .checkpoint import GLMCheckpoint

__all__ = ("GLMDecode", "GLMSequence")


@dataclass(slots=True, eq=False)
class GLMSequence:
    """One sequence in a slot."""

    slot: int
    ledger: Ledger
    """Its tokens and steps, counted."""
    sampler: Sampler
    memory: Memory
    """The slot's; taken over by the next sequence."""
    length: int
    """Positions in ``memory`` that are this sequence's."""
    last: int
    """The newest token: not yet in ``memory``."""
    drafts: list[int] = field(default_factory=list[int])
    """Guesses of the tokens after ``last``."""
    lane: Lane | None = None
    """What takes its steps, where the device does: it alone then knows how far they are."""
    made: int = 1
    """Tokens of the answer that were drawn, the first included, and those of a chain that runs."""


class GLMDecode:
    """A ``DecodeEngine`` on a checkpoint.

    :param slots: sequences that can be open at once.
    :param max_seq_len: tokens of prompt and answer together.
    :param ar_steps: the longest chain, in steps.
    :param drafts: tokens that a step verifies beside its own; 0: no multi-token prediction.
    :param chains: how the steps of a chain are taken; None: as is fastest on the device.
    :param grammars: what holds answers to a grammar; such an answer's steps are taken by the host.
    :raises ~tilert_stream.errors.ConfigError: a parameter that is out of range.
    """

    def __init__(
        self,
        checkpoint: GLMCheckpoint,
        *,
        slots: int,
        max_seq_len: int,
        ar_steps: int = 1,
        drafts: int = 3,
        chains: ChainOptions | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        check_window(checkpoint, max_seq_len)
        if slots < 1:
            raise ConfigError(f"slots is {slots}; it must be at least 1")
        if drafts < 0:
            raise ConfigError(f"drafts is {drafts}; it must be at least 0")
        self.slots = slots
        self.max_seq_len = max_seq_len
        self._drafts = drafts
        self._planner = ChainPlanner(ar_steps, drafts + 1)
        self._name = checkpoint.name
        # The last step's drafts can reach beyond the last token, and those that it makes further.
        positions = max_seq_len + 2 * drafts
        self._network = Network(checkpoint.config, checkpoint.weights, positions)
        self._memories = [
            Memory(checkpoint.config, checkpoint.weights, positions) for _ in range(slots)
        ]
        self._open: dict[int, GLMSequence] = {}
        self.grammars = grammars
        self._lanes = make_lanes(
            chains or ChainOptions(),
            lambda slot, state: GLMStep(self._network, self._memories[slot], state),
            self._planner,
            device=checkpoint.weights.device,
            slots=slots,
            vocab=checkpoint.config.vocab_size,
            max_seq_len=max_seq_len,
            positions=positions,
            reach=max(0, drafts - 1),
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

    @property
    def busy(self) -> int:
        """Sequences that are open."""
        return len(self._open)

    def landing(self, memory: memoryview, /) -> AbstractContextManager[None]:
        """Have the device read ``memory``, in which KV caches will land, at its bus's full rate."""
        return page_locked(memory, self._network.weights.device)

    @torch.inference_mode()
    def open(
        self, slot: int, kv: object, first_token: int, limits: Limits, sampling: Sampling, /
    ) -> GLMSequence:
        """Import ``kv`` (a ``CachedKV`` or ``ImportedKV``) into ``slot``.

        :raises ~tilert_stream.errors.EngineFault: a KV cache that this model does not take, or one
            that leaves no room for ``limits.max_tokens``.
        :raises RuntimeError: the slot is busy, or no slot of this engine.
        """
        if not 0 <= slot < self.slots:
            raise RuntimeError(f"slot {slot} does not exist; there are {self.slots}")
        if slot in self._open:
            raise RuntimeError(f"slot {slot} is busy; close its sequence first")
        imported = self._checked(kv, first_token, limits)
        memory = self._memories[slot]
        sequence = GLMSequence(
            slot=slot,
            ledger=Ledger(limits, mtp=self._drafts > 0),
            sampler=make_sampler(sampling, self.grammars),
            memory=memory,
            length=imported.seq_len,
            last=first_token,
        )
        if self._lanes:
            _begin(self._lanes[slot], sequence, imported, sampling)
        else:
            memory.fill(imported)
        if sequence.sampler.remembers and sequence.lane is None:
            sequence.sampler.begin(first_token)
        self._open[slot] = sequence
        return sequence

    @torch.inference_mode()
    def advance(self, sequence: GLMSequence, /) -> Harvest:
        """Run one chain of at most ``ar_steps`` steps, never more than the budget can need.

        :raises ~tilert_stream.errors.EngineFault: the logits are not finite.
        :raises RuntimeError: the sequence is closed or has finished.
        """
        if self._open.get(sequence.slot) is not sequence:
            raise RuntimeError("this sequence is closed")
        ledger = sequence.ledger
        if ledger.finished is not None:
            raise RuntimeError("this sequence has finished; close it")
        if sequence.lane is not None:
            return sequence.lane.harvest(ledger)
        ids: list[int] = []
        accepted: list[int] = []
        told: list[TokenLogprob] = []
        with self._lanes[sequence.slot].entered() if self._lanes else nullcontext():
            for _ in range(self._planner.length(ledger.remaining)):
                drawn = self._step(sequence, told)
                ids += drawn
                accepted.append(len(drawn))
                if ledger.limits.cut(ids, ledger.emitted)[1] is not None:
                    break
        return ledger.take(ids, accepted, None if sequence.sampler.logprobs is None else told)

    def close(self, sequence: GLMSequence, /) -> None:
        """Free the slot.

        :raises RuntimeError: it is not this sequence's any more.
        """
        if self._open.get(sequence.slot) is not sequence:
            raise RuntimeError("this sequence is closed")
        del self._open[sequence.slot]

    def _step(self, sequence: GLMSequence, told: list[TokenLogprob]) -> list[int]:
        """One forward of the main model: the tokens that it drew, at least one."""
        network, memory = self._network, sequence.memory
        start, room = sequence.length, sequence.ledger.limits.max_tokens - sequence.made
        guesses = sequence.drafts[: max(0, room - 1)]
        hidden = network.hidden(self._tensor([sequence.last, *guesses]), start, memory)
        logits = network.logits(hidden)
        drawn: list[int] = []
        for place in range(len(guesses) + 1):
            drawn.append(self._draw(sequence, logits[place], sequence.made + place, told))
            if place == len(guesses) or drawn[place] != guesses[place]:
                break
        kept = len(drawn)
        sequence.length += kept
        sequence.made += kept
        sequence.last = drawn[-1]
        sequence.drafts = []
        if sequence.made < sequence.ledger.limits.max_tokens:
            self._guess(sequence, hidden[:kept], drawn, start)
        return drawn

    def _guess(
        self, sequence: GLMSequence, hidden: torch.Tensor, drawn: list[int], start: int
    ) -> None:
        network, following = self._network, drawn
        for further in range(self._drafts):
            state = network.draft(hidden, self._tensor(following), start, sequence.memory)
            start += len(following)
            hidden = state[-1:]
            logits = network.draft_logits(hidden)[0]
            following = [int(sequence.sampler.guess(logits, sequence.made + further)[0])]
            sequence.drafts += following

    def _draw(
        self, sequence: GLMSequence, logits: torch.Tensor, index: int, told: list[TokenLogprob]
    ) -> int:
        sampler = sequence.sampler
        masked = sequence.ledger.limits.stop_mask(index)
        raw = logits if sampler.logprobs is None else logits.clone()
        drawn, peak = sampler.draw(logits, index, masked=masked)
        if not math.isfinite(height := float(peak)):
            raise EngineFault(
                f"the highest logit of token {index} is {height}, not finite: the weights or the"
                " dtype overflow; try another dtype"
            )
        if sampler.logprobs is not None:
            told += sampler.score(raw, drawn)
        if sampler.remembers:
            sampler.note(drawn)
        return int(drawn)

    def _tensor(self, ids: list[int]) -> torch.Tensor:
        return torch.tensor(ids, device=self._network.weights.device)

    def _checked(self, kv: object, first_token: int, limits: Limits) -> ImportedKV:
        imported = import_planes(kv.model, kv.planes) if isinstance(kv, CachedKV) else kv
        if not isinstance(imported, ImportedKV):
            raise EngineFault(
                f"the KV cache is a {type(kv).__name__}, this engine takes a CachedKV or an"
                " ImportedKV; pair it with the GLM prefill engine"
            )
        config, length = self._network.config, imported.seq_len
        for what, got, want in (
            ("model", imported.model, self._name),
            ("number of layers", imported.kv.shape[0], config.cache_layers),
        ):
            if got != want:
                raise EngineFault(
                    f"the KV cache's {what} is {got}, this engine's is {want}; prefill and decode"
                    " must load the same model, both with its draft layer"
                )
        if length + limits.max_tokens > self.max_seq_len:
            raise EngineFault(
                f"the prompt's {length} tokens and max_tokens {limits.max_tokens} are more "
                f"than the engine's max_seq_len {self.max_seq_len}; ask for fewer tokens"
            )
        if not 0 <= first_token < config.vocab_size:
            raise EngineFault(
                f"the first token's id is {first_token}; ids are 0 to {config.vocab_size - 1}"
            )
        return imported


def _begin(lane: Lane, sequence: GLMSequence, imported: ImportedKV, sampling: Sampling) -> None:
    # From the host to the device on the thread's own stream: chains that run go on meanwhile.
    moved = imported.to(sequence.memory.rows.device)
    with lane.importing(moved.ki, moved.kv, moved.pe):
        by_lane = sampling.grammar is None
        if by_lane:
            lane.expect(sequence.length, sequence.ledger, sampling)
        sequence.memory.fill(moved)
        if by_lane:
            sequence.lane = lane
            lane.begin(sequence.last, sequence.ledger, sampling)
