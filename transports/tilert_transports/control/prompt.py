"""Which prompt a KV cache is of: a router says it when it reserves, prefill when it claims.

A cache of another prompt has the same shape: nothing but this tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("PromptIdentity",)


@dataclass(frozen=True, slots=True)
class PromptIdentity:
    """A prompt, as far as two nodes compare it."""

    tokens: int
    last_token: int
    """Its last id."""
    digest: str | None
    """BLAKE2b of its ids (int32, little-endian), 8 bytes as hex digits; None: not told."""

    def __str__(self) -> str:
        digest = "without a digest" if self.digest is None else f"digest {self.digest}"
        return f"a prompt of {self.tokens} tokens that ends in {self.last_token} ({digest})"
