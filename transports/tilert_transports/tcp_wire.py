"""What goes over a TCP connection between two transports.

Once, from the writer: ``HELLO``; back: ``ANSWER``. Then for each write, from the writer: ``WRITE``,
one ``ROW`` a segment, and the segments' bytes one after another; back: ``DONE``, when all of them
are in the region. A writer that gives up half-closes the connection in the middle of the bytes; the
reader then stops, and closes its side as the proof. All integers are unsigned, big-endian.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

__all__ = ("ANSWER", "DONE", "HELLO", "MAGIC", "MAX_DESCRIPTORS", "ROW", "WRITE", "Status")

MAGIC: Final = b"tilertK1"
"""Protocol and version."""

HELLO: Final = struct.Struct("!8s16s16s")
"""Magic, incarnation that the card names, secret from the card."""
ANSWER: Final = struct.Struct("!8sB16s")
"""Magic, status, the reader's own incarnation."""
WRITE: Final = struct.Struct("!IIQ")
"""Region id, rows, bytes in all rows."""
ROW: Final = struct.Struct("!QQ")
"""Offset in the region, bytes."""
DONE: Final = struct.Struct("!BQ")
"""Status, bytes received."""

MAX_DESCRIPTORS: Final = 1 << 16
"""Rows of one write: their table takes a megabyte."""


class Status(IntEnum):
    """How the reader answers."""

    OK = 0
    STALE = 1
    """The card is of another life of this process."""
    DENIED = 2
    """The secret is wrong."""
    OUT_OF_RANGE = 3
    """A row leaves its region, or the region is unknown."""
