"""What the cells of the shared memory mean here: orders to the mocked nodes, and what they saw.

The memory itself is ``bench.board``'s, with its row of moments for each stream.
"""

from __future__ import annotations

from typing import Final

__all__ = ("EMITTED", "ITL_NS", "LEFT", "LETTERS", "PREFILL_NS", "letter")

ITL_NS: Final = 0
"""Nanoseconds from one token of a stream to its next; 0: the next turn of the mock's loop."""
PREFILL_NS: Final = 1
"""Nanoseconds that a prompt takes; 0: answered at once."""
LEFT: Final = 2
"""When the decode node noticed that a stream's reader had left; 0: it has not."""
EMITTED: Final = 3
"""Tokens made."""

LETTERS: Final = 26


def letter(index: int) -> str:
    """The text of token number ``index`` of any stream; as a token id it is its code point."""
    return chr(ord("a") + index % LETTERS)
