"""Where tokens stand in their sequence: positions in, the rows of tables and caches out.

A forward pass asks ``Places`` and never computes a position itself. So the same pass runs a chunk
of a prompt, whose positions the host knows (``span``: slices, and nothing is computed that does not
count), and a step whose positions are numbers on the device (``window``: shapes that never change,
which a CUDA graph can be replayed with).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ("Places", "Span", "Window", "span", "window")


class Places(Protocol):
    """The positions of ``n`` tokens that follow each other."""

    @property
    def start(self) -> int:
        """So many positions, at least, every token sees."""
        ...

    @property
    def stop(self) -> int:
        """Attention reads the positions before this one; all tokens stand there."""
        ...

    @property
    def unseen(self) -> torch.Tensor | None:
        """Which positions a token must not see, bool ``[n, stop]``; None: each sees all."""
        ...

    def of(self, table: torch.Tensor) -> torch.Tensor:
        """The tokens' rows of ``table`` ``[positions, …]``."""
        ...

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Write ``values`` ``[n, …]`` to the tokens' rows of ``rows`` ``[positions, …]``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Positions ``start`` … ``stop`` - 1."""

    start: int
    stop: int
    unseen: torch.Tensor | None

    def of(self, table: torch.Tensor) -> torch.Tensor:
        """As the contract: a view."""
        return table[self.start : self.stop]

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """As the contract."""
        rows[self.start : self.stop] = values


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Positions that only the device knows, all before ``stop``."""

    start: int
    stop: int
    unseen: torch.Tensor
    places: torch.Tensor
    """int64 ``[n]``"""

    def of(self, table: torch.Tensor) -> torch.Tensor:
        """As the contract."""
        return table.index_select(0, self.places)

    def put(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """As the contract."""
        rows.index_copy_(0, self.places, values)


def span(start: int, tokens: int, device: torch.device) -> Span:
    """``tokens`` positions from ``start`` on."""
    stop = start + tokens
    unseen: torch.Tensor | None = None
    if tokens > 1:
        places = torch.arange(stop, device=device)
        unseen = places > places[start:].unsqueeze(1)
    return Span(start, stop, unseen)


def window(places: torch.Tensor, stop: int) -> Window:
    """The positions ``places`` (int64 ``[n]``, on the device), all before ``stop``."""
    seen = torch.arange(stop, device=places.device)
    return Window(0, stop, seen > places.unsqueeze(1), places)
