"""The prefill engine: prompt ids in, the first token and the KV cache out, a chunk at a time.

The draft layer is prefilled as well: its position i takes token i + 1, so that its last one takes
the first token of the answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tilert_engine.layouts.mla_nsa_cache import CachedKV
from tilert_engine.torch.prompt_scores import PromptScores
from tilert_engine.torch.sampler import make_sampler, sampler_capabilities
from tilert_stream.errors import ConfigError, EngineFault
from tilert_stream.events import PromptUsage, TokenBatch

from .memory import PagedMemory
from .network import Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_engine.layouts.mla_nsa_model import CacheDtype
    from tilert_engine.torch.grammar import Grammars
    from tilert_engine.torch.sampler import Sampler
    from tilert_stream.events import Capability, Limits, Sampling

    from .checkpoint import GLMCheckpoint

__all__ = ("GLMPrefill", "GLMPrefillOutput", "GLMPrefillRun", "check_window")


@dataclass(frozen=True, slots=True)
class GLMPrefillOutput:
    """A finished run."""

    first: TokenBatch
    kv: CachedKV
    usage: PromptUsage


@dataclass(slots=True)
class GLMPrefillRun:
    """One prompt on its way."""

    prompt_ids: tuple[int, ...]
    limits: Limits
    sampler: Sampler
    scores: PromptScores
    memory: PagedMemory | None = field(default=None, repr=False)
    """Allocated by the first chunk, let go when the run is closed or handed over."""
    computed: int = 0
    closed: bool = False


class GLMPrefill:
    """A ``PrefillEngine`` on a checkpoint.

    :param max_seq_len: tokens of prompt and answer together.
    :param cache_dtype: of the latent rows.
    :param chunk: prompt tokens computed by one ``advance``.
    :param grammars: what holds answers to a grammar.
    :raises ~tilert_stream.errors.ConfigError: ``max_seq_len`` beyond what the model knows.
    """

    def __init__(
        self,
        checkpoint: GLMCheckpoint,
        *,
        max_seq_len: int,
        cache_dtype: CacheDtype = "fp8_ds_mla",
        chunk: int = 128,
        grammars: Grammars | None = None,
    ) -> None:
        check_window(checkpoint, max_seq_len)
        if chunk < 1:
            raise ConfigError(f"the prefill chunk is {chunk} tokens; it must be at least 1")
        self.max_seq_len = max_seq_len
        self._cache_dtype: CacheDtype = cache_dtype
        self._chunk = chunk
        self.grammars = grammars
        self._name = checkpoint.name
        self._network = Network(checkpoint.config, checkpoint.weights, max_seq_len)

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

    def open(
        self, prompt_ids: Sequence[int], limits: Limits, sampling: Sampling, /
    ) -> GLMPrefillRun:
        """Begin a run.

        :raises ~tilert_stream.errors.EngineFault: an empty prompt, one that does not fit, or an id
            outside the vocabulary.
        """
        prompt = tuple(prompt_ids)
        if not prompt:
            raise EngineFault("the prompt has 0 tokens; it needs at least 1")
        if len(prompt) + limits.max_tokens > self.max_seq_len:
            raise EngineFault(
                f"the prompt's {len(prompt)} tokens and max_tokens {limits.max_tokens} are more "
                f"than the engine's max_seq_len {self.max_seq_len}; ask for fewer tokens"
            )
        vocab = self._network.config.vocab_size
        strange = next((token for token in prompt if not 0 <= token < vocab), None)
        if strange is not None:
            raise EngineFault(f"the prompt has token id {strange}; ids are 0 to {vocab - 1}")
        sampler = make_sampler(sampling, self.grammars)
        scores = PromptScores(prompt, sampling.prompt_logprobs)
        return GLMPrefillRun(prompt, limits, sampler, scores)

    @torch.inference_mode()
    def advance(self, run: GLMPrefillRun, /) -> GLMPrefillOutput | None:
        """Compute one chunk; the output after the last one.

        :raises ~tilert_stream.errors.EngineFault: the logits are not finite.
        :raises RuntimeError: the run is closed or has been handed over.
        """
        if run.closed:
            raise RuntimeError("this prefill run is over; open another")
        network, total = self._network, len(run.prompt_ids)
        if run.memory is None:
            run.memory = PagedMemory(network.config, network.weights, total, self._cache_dtype)
        start, memory = run.computed, run.memory
        stop = min(start + self._chunk, total)
        ids = self._tensor(run.prompt_ids[start:stop])
        hidden = network.hidden(ids, start, memory)
        run.computed = stop
        run.scores.take(network.logits, hidden, start)
        first = self._first(run, hidden) if stop == total else None
        following = [*run.prompt_ids[start + 1 : stop + 1], *(first.ids if first else ())]
        network.draft(hidden, self._tensor(following), start, memory)
        if first is None:
            return None
        self.close(run)
        kv = CachedKV(self._name, memory.latent_cache, memory.index_cache)
        return GLMPrefillOutput(first, kv, PromptUsage(total, logprobs=run.scores.told))

    def close(self, run: GLMPrefillRun, /) -> None:
        """Free what the run holds. Idempotent."""
        run.closed = True
        run.memory = None

    def _tensor(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(ids, device=self._network.weights.device)

    def _first(self, run: GLMPrefillRun, hidden: torch.Tensor) -> TokenBatch:
        sampler = run.sampler
        logits = self._network.logits(hidden[-1:])[0]
        raw = logits if sampler.logprobs is None else logits.clone()
        drawn, peak = sampler.draw(logits, 0, masked=run.limits.stop_mask(0))
        height = float(peak)
        if not math.isfinite(height):
            raise EngineFault(
                f"the prompt's highest logit is {height}, not finite: the weights or the dtype "
                "overflow; try another dtype"
            )
        token = int(drawn)
        _, finished = run.limits.cut((token,), 0)
        return TokenBatch(
            (token,),
            None if sampler.logprobs is None else sampler.score(raw, drawn),
            ends_with_stop=finished is not None and finished.reason == "stop",
        )


def check_window(checkpoint: GLMCheckpoint, max_seq_len: int) -> None:
    """Refuse a ``max_seq_len`` that the model was not trained for.

    :raises ~tilert_stream.errors.ConfigError: it is below 2 or above the model's positions.
    """
    known = checkpoint.max_position_embeddings
    if not 2 <= max_seq_len <= known:
        raise ConfigError(
            f"max_seq_len is {max_seq_len}; {checkpoint.name} takes 2 to {known} "
            "(max_position_embeddings)"
        )
