"""How a node's KV cache is laid out, in the terms in which two nodes compare theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fields import Fields
    from .frames import JSONObject

__all__ = ("LayoutDescription", "PlaneDescription")


@dataclass(frozen=True, slots=True)
class PlaneDescription:
    """One plane, as every layer has it: rows of ``row_tokens`` tokens, ``row_bytes`` bytes each.

    ``("kv", 1, 528)`` is a latent with its scales, token by token; ``("ki", 64, 8448)`` are an
    indexer's pages.
    """

    name: str
    row_tokens: int
    row_bytes: int

    def to_json(self) -> JSONObject:
        """The object that stands in a HELLO."""
        return {"name": self.name, "row_tokens": self.row_tokens, "row_bytes": self.row_bytes}

    @classmethod
    def parse(cls, fields: Fields) -> PlaneDescription:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(
            fields.text("name"),
            fields.integer("row_tokens", least=1),
            fields.integer("row_bytes", least=1),
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.row_bytes} B every {self.row_tokens} tokens"


@dataclass(frozen=True, slots=True)
class LayoutDescription:
    """All that must be the same on both sides, and ``max_seq_len``, which need not be."""

    kind: str
    """``mla_nsa``, ``gqa``."""
    version: int
    """TileRT's numbering for ``mla_nsa``."""
    dtype: str
    """Of the cache's values: ``fp8_ds_mla``, ``bfloat16``."""
    block_size: int
    """Tokens in a block of prefill's paged cache."""
    layers: int
    """Cache layers, the draft's included."""
    draft_layers: int
    """How many of them belong to the multi-token-prediction draft."""
    max_seq_len: int
    """Tokens that fit; on the decode node also the rows that a landing region has a layer."""
    sender_ranks: tuple[int, ...]
    """The tensor-parallel ranks of prefill that send; a hand-off is complete with the last."""
    planes: tuple[PlaneDescription, ...]

    def to_json(self) -> JSONObject:
        """The object that stands in a HELLO."""
        return {
            "kind": self.kind,
            "version": self.version,
            "dtype": self.dtype,
            "block_size": self.block_size,
            "layers": self.layers,
            "draft_layers": self.draft_layers,
            "max_seq_len": self.max_seq_len,
            "sender_ranks": list(self.sender_ranks),
            "planes": [plane.to_json() for plane in self.planes],
        }

    @classmethod
    def parse(cls, fields: Fields) -> LayoutDescription:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        ranks = fields.integers("sender_ranks")
        if not ranks or len(set(ranks)) != len(ranks):
            fields.refuse("sender_ranks", "at least one rank, none twice,")
        return cls(
            kind=fields.text("kind"),
            version=fields.integer("version"),
            dtype=fields.text("dtype"),
            block_size=fields.integer("block_size", least=1),
            layers=fields.integer("layers", least=1),
            draft_layers=fields.integer("draft_layers"),
            max_seq_len=fields.integer("max_seq_len", least=1),
            sender_ranks=ranks,
            planes=tuple(PlaneDescription.parse(plane) for plane in fields.objects("planes")),
        )
