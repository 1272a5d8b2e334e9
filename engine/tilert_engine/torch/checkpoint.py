"""A loaded model: everything that engines and the front of the server need of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilert_stream.events import Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer

    from .config import ModelConfig
    from .weights import Weights

__all__ = ("Checkpoint",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model in memory. Immutable; prefill and decode share it."""

    name: str
    """The file's or directory's name."""
    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer
    """Its post-processor adds the BOS token where the model expects one."""
    eos_ids: frozenset[int]
    """Every id that ends the model's answer."""
    bos_id: int | None = None
    chat_template: str | None = None
    """Jinja source; None for a base model."""
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    """What a chat template may name: ``bos_token``, ``eos_token``, …"""
    default_sampling: Sampling = field(default_factory=Sampling)
    """What ``generation_config.json`` recommends."""

    @property
    def max_position_embeddings(self) -> int:
        """Positions that the model was trained for."""
        return self.config.max_position_embeddings

    @property
    def add_bos(self) -> bool:
        """Whether encoding a prompt with special tokens begins it with BOS."""
        return self.bos_id is not None and self.bos_id in self.tokenizer.encode("").ids
