"""Copying segments between two places in this process's address space.

In: a transfer and the two base addresses. Out: the bytes at their places. The interpreter's lock is
free while a piece is copied; between pieces the copy looks whether it has been given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .host_memory import copy_bytes

if TYPE_CHECKING:
    from .lane import Transfer

__all__ = ("copy_segments",)

PIECE: Final = 4 << 20
"""Bytes copied between two looks: about a millisecond."""


def copy_segments(transfer: Transfer, source: int, target: int) -> None:
    """Copy the transfer's segments; returns early once it is given up."""
    for from_, to, nbytes in transfer.segments:
        if transfer.given_up:
            return
        if nbytes <= PIECE:
            copy_bytes(target + to, source + from_, nbytes)
        else:
            _copy_in_pieces(transfer, source + from_, target + to, nbytes)


def _copy_in_pieces(transfer: Transfer, source: int, target: int, nbytes: int) -> None:
    for begin in range(0, nbytes, PIECE):
        if transfer.given_up:
            return
        copy_bytes(target + begin, source + begin, min(PIECE, nbytes - begin))
