"""The decode engine on TileRT: an unpacked KV cache in, chains of token ids out.

A generator holds one sequence at a time, so there is one slot. A sequence's way::

    inject_cache ─► set_cur_pos ─► update_sampling_params ─► decode mode ─► opening step (MTP)
      ─► chain ─► chain ─► … ─► reset_sequence

``reset_sequence`` is called on every way out, a fault while opening included.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import torch

from tilert_engine.accounting import Ledger
from tilert_engine.chains import DEFAULT_AR_STEPS, ChainPlanner
from tilert_stream.errors import ConfigError, EngineFault

from .kv import TileRTKV, checked_layers, told_kv
from .loops import loop_of
from .sampling import device_sampling

if TYPE_CHECKING:
    from collections.abc import Collection

    from tilert_engine.layouts.mla_nsa_model import MlaNsaModel
    from tilert_stream.events import Capability, Harvest, Limits, Sampling

    from .device import Generator
    from .sampling import DeviceSampling

__all__ = ("TileRTDecode", "TileRTSequence")


@runtime_checkable
class _Seeded(Protocol):
    def set_sampling_seed(self, seed: int, *, with_mtp: bool) -> None: ...


@dataclass(slots=True, eq=False)
class TileRTSequence:
    """The sequence that the generator holds."""

    ledger: Ledger
    """Its counts; they stay after it has been closed."""


class TileRTDecode:
    """A ``DecodeEngine`` on one of TileRT's generators.

    :param generator: its weights loaded, with MTP or without as ``with_mtp`` says.
    :param model: what the caches that come in must be of.
    :param max_seq_len: tokens of prompt and answer together; None: as many as the window takes.
    :param ar_steps: the longest chain; it is 1 where TileRT takes only single steps.
    :param token_out: where a step's intermediates hold its token (``Idx.TOKEN_OUT``).
    :raises ~tilert_stream.errors.ConfigError: the generator cannot do it.
    """

    slots = 1

    def __init__(
        self,
        generator: Generator,
        *,
        model: MlaNsaModel,
        with_mtp: bool,
        max_seq_len: int | None = None,
        ar_steps: int = DEFAULT_AR_STEPS,
        token_out: int = 0,
    ) -> None:
        self._generator = generator
        self._layer = generator.decode_layer
        self._model = model
        self._mtp = with_mtp
        step_tokens = cast("int", getattr(generator, "mtp_seq_len", 1)) if with_mtp else 1
        self._loop = loop_of(
            self._layer, step_tokens=step_tokens, with_mtp=with_mtp, token_out=token_out
        )
        self._planner = ChainPlanner(ar_steps if self._loop.chained else 1, self._loop.step_tokens)
        self.max_seq_len = self._longest(max_seq_len)
        self.stop_ids = _stop_ids(generator)
        """The model's own stop tokens, as TileRT knows them."""
        self._sampling: DeviceSampling | None = None
        self._seeded = False
        self._open: TileRTSequence | None = None

    def _longest(self, asked: int | None) -> int:
        window = _window(self._generator)
        # The last step of a chain may draft past the budget: its rows must still be in the cache.
        longest = window - (self._loop.step_tokens - 1)
        if asked is not None and asked > window:
            raise ConfigError(
                f"max_seq_len is {asked}; TileRT's caches have room for {window} tokens",
                param="max_seq_len",
            )
        return longest if asked is None else min(asked, longest)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Of what a request can ask for; not every TileRT takes a seed."""
        return frozenset({"seed"}) if isinstance(self._layer, _Seeded) else frozenset()

    def told(self, kv: object, last_token: int, /) -> TileRTKV:
        """``kv`` with the prompt's last token, for MTP's opening step.

        :raises ~tilert_stream.errors.EngineFault: it is no ``ImportedKV``.
        """
        return TileRTKV(told_kv(kv).cache, last_token)

    @torch.inference_mode()
    def open(
        self, slot: int, kv: object, first_token: int, limits: Limits, sampling: Sampling, /
    ) -> TileRTSequence:
        """Inject ``kv``, and lead the device to where prefill was.

        :raises ~tilert_stream.errors.EngineFault: a KV cache that the model does not take, one
            that leaves no room for ``limits.max_tokens``, or sampling that TileRT does not have.
        :raises RuntimeError: the slot is busy, or not 0.
        """
        if slot != 0:
            raise RuntimeError(f"slot {slot} does not exist; TileRT has slot 0 alone")
        if self._open is not None:
            raise RuntimeError("slot 0 is busy; close its sequence first")
        told = told_kv(kv)
        layers = checked_layers(told.cache, self._model, draft=self._mtp)
        tokens = told.cache.seq_len
        if tokens + limits.max_tokens > self.max_seq_len:
            raise EngineFault(
                f"the prompt's {tokens} tokens and max_tokens {limits.max_tokens} are more than"
                f" the engine's max_seq_len {self.max_seq_len}; ask for fewer tokens"
            )
        drawn = device_sampling(sampling)
        ledger = Ledger(limits, mtp=self._mtp)
        try:
            self._generator.inject_cache(layers, start_pos=0)
            self._generator.set_cur_pos(tokens - 1)
            self._sample(drawn, sampling.seed)
            self._loop.select()
            if self._mtp:
                self._open_draft_layer(told.last_prompt_token, tokens, ledger)
            self._loop.begin(first_token)
        except BaseException:
            self._layer.reset_sequence()
            raise
        self._open = TileRTSequence(ledger)
        return self._open

    def _open_draft_layer(self, last: int | None, tokens: int, ledger: Ledger) -> None:
        # Without the token the draft layer misses one row, which costs a little acceptance and no
        # correctness: what it drafts is verified. A wrong token would spoil the prompt's own rows.
        if last is not None:
            self._loop.open(last)
            ledger.opened()
        # The opening step's draft is filled with one token. Where the model goes on with that very
        # token, the step accepts more than prefill's and leaves the position too far.
        self._generator.set_cur_pos(tokens)

    def _sample(self, drawn: DeviceSampling, seed: int | None) -> None:
        # The same again would record the CUDA graphs anew before the next token is out.
        if drawn != self._sampling:
            self._sampling = None
            self._generator.update_sampling_params(
                temperature=drawn.temperature,
                top_p=drawn.top_p,
                top_k=drawn.top_k,
                use_topp=drawn.use_topp,
            )
            self._sampling = drawn
        if not drawn.use_topp or (seed is None and not self._seeded):
            return
        if not isinstance(self._layer, _Seeded):
            raise EngineFault(
                f"seed is {seed}; this version of TileRT takes none. Leave it out", param="seed"
            )
        # A seed must not outlive its request: the next one without any would repeat its draws.
        fresh = secrets.randbits(31) if seed is None else seed
        self._layer.set_sampling_seed(fresh, with_mtp=self._mtp)
        self._seeded = seed is not None

    @torch.inference_mode()
    def advance(self, sequence: TileRTSequence, /) -> Harvest:
        """Run one chain, never longer than the budget can need.

        :raises RuntimeError: the sequence is closed or has finished.
        """
        if self._open is not sequence:
            raise RuntimeError("this sequence is closed")
        if sequence.ledger.finished is not None:
            raise RuntimeError("this sequence has finished; close it")
        ids, accepted = self._loop.run(self._planner.length(sequence.ledger.remaining))
        return sequence.ledger.take(ids, accepted)

    def close(self, sequence: TileRTSequence, /) -> None:
        """Forget the sequence.

        :raises RuntimeError: it is closed already.
        """
        if self._open is not sequence:
            raise RuntimeError("this sequence is closed")
        self._open = None
        self._layer.reset_sequence()


def _window(generator: Generator) -> int:
    for owner in (generator.decode_layer, getattr(generator, "config", None)):
        window = getattr(owner, "max_seq_len", None)
        if isinstance(window, int):
            return window
    raise ConfigError(
        f"TileRT's {type(generator).__name__} does not say how long its caches are; install the"
        " tilert version that docs/engines.md names"
    )


def _stop_ids(generator: Generator) -> frozenset[int]:
    known = cast("Collection[int] | None", getattr(generator, "stop_token_ids", None))
    if known:
        return frozenset(known)
    eos = cast("int | None", getattr(generator, "eos_id", None))
    return frozenset() if eos is None else frozenset({eos})
