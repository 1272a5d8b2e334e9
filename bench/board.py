"""Memory that the load generator and one server share: orders to the engine, and what it did when.

In: the pace and the gate, written by the load generator. Out: counters, and the moment at which
every token came to be, by ``CLOCK_MONOTONIC``, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("EMITTED", "ENGINE_CPU", "HOLD", "OPENED", "TOKENS", "TURNS", "Board")

CHAIN: Final = 0
"""Tokens that one turn of the engine yields: tokens a wake."""
CHAIN_NS: Final = 1
"""Nanoseconds that one turn takes."""
HOLD: Final = 2
"""Not 0: no token is made until so many streams are open, and then none until the gate opens."""
OPENED: Final = 3
"""Sequences that the decode engine has opened."""
EMITTED: Final = 4
"""Tokens that the decode engine has made."""
TURNS: Final = 5
"""Turns in which it made them."""
ENGINE_CPU: Final = 6
"""Nanoseconds of CPU time that its thread has used."""

HEADER: Final = 8
STREAMS: Final = 4096
TOKENS: Final = 4096
"""So many tokens of each stream have their moment recorded."""
SIZE: Final = 8 * (HEADER + STREAMS * TOKENS)


class Board:
    """64-bit cells: the header above, then a row of moments for each stream.

    :param path: a file, made on first use; it is sparse, and only what is used takes memory.
    """

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(SIZE)
            self._map = mmap.mmap(file.fileno(), SIZE)
        self.cells = memoryview(self._map).cast("q")

    def pace(self, *, chain: int, seconds: float, hold: int = 0) -> None:
        """Tell the engine how many tokens a turn yields, and how long a turn takes."""
        self.cells[CHAIN] = chain
        self.cells[CHAIN_NS] = round(seconds * 1e9)
        self.cells[HOLD] = hold

    def clear(self, streams: int) -> None:
        """Forget the moments of the first ``streams`` rows, and the counters."""
        self.cells[OPENED] = self.cells[EMITTED] = self.cells[TURNS] = 0
        begin, end = 8 * HEADER, 8 * (HEADER + streams * TOKENS)
        self._map[begin:end] = bytes(end - begin)

    def moments(self, stream: int) -> memoryview:
        """When each token of ``stream`` was made; 0 where it has not been, or not recorded."""
        begin = place(stream, 0)
        return self.cells[begin : begin + TOKENS]


def place(stream: int, index: int) -> int:
    """The cell of token number ``index`` of ``stream``."""
    return HEADER + (stream % STREAMS) * TOKENS + index
