"""``tiny-glm5``, the model that is shipped: options in, its two engines, front and layout out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tilert_engine.glm import build
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_model import cache_dtype, with_draft
from tilert_stream.errors import ConfigError

from .front import model_front

if TYPE_CHECKING:
    from tilert_engine.glm import GLMDecode, GLMPrefill
    from tilert_stream.config.engine import EngineOptions

__all__ = ("ServedGLM",)

_DRAFTS: Final = 3
"""Tokens that a step verifies: as measured, more are seldom right, fewer leave time unused."""


class ServedGLM:
    """A ``Model`` with multi-token prediction.

    Its draft layer's KV cache travels in any case; ``--no-mtp`` leaves it unread.

    :raises ~tilert_stream.errors.ConfigError: an option that it cannot follow.
    """

    def __init__(
        self, config: EngineOptions, slots: int, ar_steps: int | None, senders: int
    ) -> None:
        if senders != 1:
            raise ConfigError(
                f"senders is {senders}; rank 0 alone sends the KV cache of an MLA model",
                param="senders",
            )
        if config.dtype not in ("auto", "float32"):
            raise ConfigError(
                f"dtype is {config.dtype!r}; {config.model} computes in float32: leave it out",
                param="dtype",
            )
        dtype = cache_dtype(config.kv_cache_dtype)
        self._built = build(
            slots=slots,
            max_seq_len=config.max_seq_len,
            ar_steps=ar_steps,
            drafts=_DRAFTS if with_draft(os.environ, flag=config.with_mtp) else 0,
            cache_dtype=dtype,
            device=config.device,
            threads=config.threads,
        )
        checkpoint, longest = self._built.checkpoint, self._built.max_seq_len
        self.front = model_front(checkpoint, config, longest)
        self.layout = MlaNsaLayout(
            model=checkpoint.cached,
            dtype=dtype,
            max_seq_len=longest,
            device=str(checkpoint.weights.device),
        )

    @property
    def prefill(self) -> GLMPrefill:
        """Computes prompts."""
        return self._built.prefill

    @property
    def decode(self) -> GLMDecode:
        """Computes answers."""
        return self._built.decode
