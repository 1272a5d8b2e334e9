"""Staging memory: one registered region, handed out piece by piece to KV caches that wait to leave.

In: sizes, from vLLM's forward path. Out: pieces that nobody else writes to until they are given
back, from the sender's thread. A piece is as large as its cache, so that short prompts do not take
the room of long ones.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from tilert_stream.errors import Busy, InvalidRequest, NotReady

__all__ = ("Piece", "StagingMemory")

ALIGNMENT: Final = 256
"""Bytes; what the largest element and a device's copy engine want."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of the staging memory."""

    offset: int
    """Bytes from the region's beginning."""
    memory: memoryview


class StagingMemory:
    """First fit over one region. Every method may be called on any thread.

    :param region: all of it, writable bytes.
    """

    def __init__(self, region: memoryview) -> None:
        self._region = region
        self._free = [(0, region.nbytes)]
        """(offset, bytes) by rising offset; neighbours are merged."""
        self._changed = threading.Condition()
        self._closed = False

    @property
    def free_bytes(self) -> int:
        """Not handed out; it need not be in one piece."""
        with self._changed:
            return sum(nbytes for _, nbytes in self._free)

    def take(self, nbytes: int, *, timeout: float) -> Piece:
        """A piece of ``nbytes``. Blocks until there is one: the back-pressure on prefill.

        :param timeout: seconds.
        :raises ~tilert_stream.errors.InvalidRequest: the memory is too small, even when empty.
        :raises ~tilert_stream.errors.Busy: no room came free in time.
        :raises ~tilert_stream.errors.NotReady: closed.
        """
        if nbytes > self._region.nbytes:
            raise InvalidRequest(
                f"the KV cache has {nbytes} bytes, the staging memory {self._region.nbytes}; raise"
                " staging_bytes in kv_connector_extra_config"
            )
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._fitting(nbytes) is not None, timeout
            )
            if self._closed:
                raise NotReady("the connector is shutting down")
            index = self._fitting(nbytes)
            if index is None:
                raise Busy(
                    f"no {nbytes} bytes of staging memory came free within {timeout:g} s: decode"
                    " nodes take KV caches more slowly than prefill makes them"
                )
            offset, size = self._free.pop(index)
            rest = min(size, _aligned(nbytes))
            if rest < size:
                self._free.insert(index, (offset + rest, size - rest))
            return Piece(offset, self._region[offset : offset + nbytes])

    def give_back(self, piece: Piece) -> None:
        """Free a piece; once."""
        start = piece.offset
        end = min(start + _aligned(piece.memory.nbytes), self._region.nbytes)
        with self._changed:
            apart = [span for span in self._free if span[0] + span[1] != start and span[0] != end]
            touching = [span for span in self._free if span not in apart]
            for offset, nbytes in touching:
                start, end = min(start, offset), max(end, offset + nbytes)
            self._free = sorted([*apart, (start, end - start)])
            self._changed.notify_all()

    def close(self) -> None:
        """Wake who waits; nothing is handed out any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fitting(self, nbytes: int) -> int | None:
        return next((i for i, (_, size) in enumerate(self._free) if size >= nbytes), None)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
