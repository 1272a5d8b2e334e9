"""The prefill engine: prompt ids in, the first token and the KV cache out, a chunk at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from tilert_stream.errors import ConfigError, EngineFault
from tilert_stream.events import PromptUsage, TokenBatch

from .kv_cache import KVCache
from .llama import Llama
from .prompt_scores import PromptScores
from .sampler import make_sampler, sampler_capabilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_stream.events import Capability, Limits, Sampling

    from .checkpoint import Checkpoint
    from .grammar import Grammars
    from .llama import KVBuffer
    from .sampler import Sampler

__all__ = ("PrefillOutput", "PrefillRun", "TorchPrefill", "check_window")


@dataclass(frozen=True, slots=True)
class PrefillOutput:
    """A finished run."""

    first: TokenBatch
    kv: KVCache
    usage: PromptUsage


@dataclass(slots=True)
class PrefillRun:
    """One prompt on its way."""

    prompt_ids: tuple[int, ...]
    limits: Limits
    sampler: Sampler
    scores: PromptScores
    buffer: KVBuffer | None = field(default=None, repr=False)
    """Allocated by the first chunk, let go when the run is closed or handed over."""
    computed: int = 0
    closed: bool = False


class TorchPrefill:
    """A ``PrefillEngine`` on a checkpoint.

    :param max_seq_len: tokens of prompt and answer together.
    :param chunk: prompt tokens computed by one ``advance``; a run can be given up between two.
    :param grammars: what holds answers to a grammar.
    :raises ~tilert_stream.errors.ConfigError: ``max_seq_len`` beyond what the model knows.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        max_seq_len: int,
        chunk: int = 256,
        grammars: Grammars | None = None,
    ) -> None:
        check_window(checkpoint, max_seq_len)
        if chunk < 1:
            raise ConfigError(f"the prefill chunk is {chunk} tokens; it must be at least 1")
        self.max_seq_len = max_seq_len
        self._chunk = chunk
        self.grammars = grammars
        self._name = checkpoint.name
        self._llama = Llama(checkpoint, max_seq_len)

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

    def open(self, prompt_ids: Sequence[int], limits: Limits, sampling: Sampling, /) -> PrefillRun:
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
        vocab = self._llama.config.vocab_size
        strange = next((token for token in prompt if not 0 <= token < vocab), None)
        if strange is not None:
            raise EngineFault(f"the prompt has token id {strange}; ids are 0 to {vocab - 1}")
        sampler = make_sampler(sampling, self.grammars)
        return PrefillRun(prompt, limits, sampler, PromptScores(prompt, sampling.prompt_logprobs))

    @torch.inference_mode()
    def advance(self, run: PrefillRun, /) -> PrefillOutput | None:
        """Compute one chunk; the output after the last one.

        :raises ~tilert_stream.errors.EngineFault: the logits are not finite.
        :raises RuntimeError: the run is closed or has been handed over.
        """
        if run.closed:
            raise RuntimeError("this prefill run is over; open another")
        if run.buffer is None:
            run.buffer = self._llama.buffer(positions=len(run.prompt_ids))
        start = run.computed
        stop = min(start + self._chunk, len(run.prompt_ids))
        ids = torch.tensor(run.prompt_ids[start:stop], device=self._llama.device)
        hidden = self._llama.hidden(ids, start, run.buffer)
        run.computed = stop
        run.scores.take(self._llama.all_logits, hidden, start)
        if stop < len(run.prompt_ids):
            return None
        first = self._first(run, hidden)
        kv = KVCache(self._name, run.buffer.keys, run.buffer.values)
        self.close(run)
        usage = PromptUsage(len(run.prompt_ids), logprobs=run.scores.told)
        return PrefillOutput(first, kv, usage)

    def close(self, run: PrefillRun, /) -> None:
        """Free what the run holds. Idempotent."""
        run.closed = True
        run.buffer = None

    def _first(self, run: PrefillRun, hidden: torch.Tensor) -> TokenBatch:
        sampler = run.sampler
        logits = self._llama.logits(hidden)
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


def check_window(checkpoint: Checkpoint, max_seq_len: int) -> None:
    """Refuse a ``max_seq_len`` that the model was not trained for.

    :raises ~tilert_stream.errors.ConfigError: it is below 2 or above the model's positions.
    """
    known = checkpoint.max_position_embeddings
    if not 2 <= max_seq_len <= known:
        raise ConfigError(
            f"max_seq_len is {max_seq_len}; {checkpoint.name} takes 2 to {known} "
            "(max_position_embeddings)"
        )
