"""A prompt's ids → what tells it from other prompts, where the ids themselves do not travel."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("prompt_digest",)

DIGEST_BYTES: Final = 8


def prompt_digest(ids: Sequence[int]) -> str:
    """BLAKE2b over the ids as little-endian int32, 8 bytes, as hex digits."""
    return blake2b(struct.pack(f"<{len(ids)}i", *ids), digest_size=DIGEST_BYTES).hexdigest()
