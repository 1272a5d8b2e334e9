"""What a model is, without its weights: enough for the front of a server, and for a KV layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tilert_stream.events import Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer

    from .config import ModelConfig

__all__ = ("ModelDescription",)

_LONGEST: Final = 4096


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A model's shape, tokenizer and templates. Immutable."""

    name: str
    """The file's or directory's name."""
    config: ModelConfig
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
    def default_max_seq_len(self) -> int:
        """Tokens of a slot where nothing else is asked for: a slot's KV cache takes memory.

        A router and its nodes must come to the same number, each by itself.
        """
        return min(self.max_position_embeddings, _LONGEST)

    @property
    def add_bos(self) -> bool:
        """Whether encoding a prompt with special tokens begins it with BOS."""
        return self.bos_id is not None and self.bos_id in self.tokenizer.encode("").ids
