"""The body of an answer: bytes as they are read in, bytes of the content out, without any I/O.

One reader for each way in which a body can end (RFC 9112, 6.3 and 7.1). h11 does the head; a
body's chunks are taken apart here, at a tenth of the cost, and everything that one read has
brought becomes one piece.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from .errors import UpstreamInvalid

if TYPE_CHECKING:
    from ..framing import Framing

__all__ = ("BodyReader", "ChunkedBody", "CloseBody", "LengthBody", "body_reader")

LINE_BYTES: Final = 4096
"""The longest line of a chunk's size and its extensions."""
TRAILER_BYTES: Final = 16 * 1024
"""All trailers together."""

MANY_BYTES: Final = 256
"""So long is a read that may have many chunks, of a token each: one by one, ten cost as much as all
of them together."""

_SHORT: Final = {b"%x" % size: size for size in range(1, 4096)}
"""Sizes as most servers write them."""
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


class BodyReader(Protocol):
    """Takes a body apart."""

    complete: bool
    """The last byte of the body has been seen."""
    clean: bool
    """Nothing came after it: the connection can carry another request."""

    def feed(self, data: bytes, /) -> bytes:
        """The content in ``data``, perhaps empty.

        :raises UpstreamInvalid: the framing is broken.
        """
        ...

    def end(self) -> bool:
        """Take the end of the connection; whether the body may end there."""
        ...


class LengthBody:
    """A body of ``length`` bytes; also the body that an answer does not have, of 0 bytes."""

    __slots__ = ("_left", "clean", "complete")

    def __init__(self, length: int) -> None:
        self._left = length
        self.complete = not length
        self.clean = True

    def feed(self, data: bytes) -> bytes:
        """The content in ``data``."""
        if len(data) > self._left:
            self.clean = False
            data = data[: self._left]
        self._left -= len(data)
        self.complete = not self._left
        return data

    def end(self) -> bool:
        """Whether all of it has come."""
        return self.complete


class CloseBody:
    """A body that ends with the connection."""

    __slots__ = ("clean", "complete")

    def __init__(self) -> None:
        self.complete = False
        self.clean = False

    def feed(self, data: bytes) -> bytes:
        """All of ``data``."""
        return data

    def end(self) -> bool:
        """It ends here."""
        self.complete = True
        return True


class ChunkedBody:
    """A chunked body."""

    __slots__ = ("_held", "_in_trailer", "_left", "_trailer_bytes", "clean", "complete")

    def __init__(self) -> None:
        self._held = b""
        # Bytes of the chunk that are still to come, the CRLF behind it included.
        self._left = 0
        self._in_trailer = False
        self._trailer_bytes = 0
        self.complete = False
        self.clean = True

    def feed(self, data: bytes) -> bytes:
        """The content of the chunks in ``data``, joined.

        :raises UpstreamInvalid: a chunk's size is none, or the lines are not those of a chunk.
        """
        if self._held:
            data, self._held = self._held + data, b""
        parts: list[bytes] = []
        at, end = 0, len(data)
        if end > MANY_BYTES and not (self._left or self._in_trailer):
            parts, at = _whole_chunks(data)
        while at < end and not self.complete:
            if self._left:
                at = self._take_chunk(data, at, parts)
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                self._hold(data[at:])
                break
            size = 0 if self._in_trailer else _SHORT.get(data[at:line_end], 0)
            content_end = line_end + 2 + size
            if size and data[content_end : content_end + 2] == b"\r\n":
                # A whole chunk, as nearly all are.
                parts.append(data[line_end + 2 : content_end])
                at = content_end + 2
                continue
            self._take_line(data[at:line_end])
            at = line_end + 2
        if self.complete and at < end:
            self.clean = False
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_chunk(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Take what is there of the chunk's content and CRLF; where that ends."""
        if self._left > 2:
            content = data[at : at + self._left - 2]
            parts.append(content)
            self._left -= len(content)
            at += len(content)
        if self._left <= 2:
            ending = data[at : at + self._left]
            if ending != b"\r\n"[2 - self._left :][: len(ending)]:
                raise UpstreamInvalid(f"a chunk is followed by {ending!r}; a line end must follow")
            self._left -= len(ending)
            at += len(ending)
        return at

    def _hold(self, line: bytes) -> None:
        limit = TRAILER_BYTES - self._trailer_bytes if self._in_trailer else LINE_BYTES
        if len(line) > limit:
            raise UpstreamInvalid(f"a chunk's size or the trailers are over {limit} bytes")
        self._held = line

    def _take_line(self, line: bytes) -> None:
        if self._in_trailer:
            self._trailer_bytes += len(line) + 2
            if self._trailer_bytes > TRAILER_BYTES:
                raise UpstreamInvalid(f"the trailers are over {TRAILER_BYTES} bytes")
            self.complete = not line
            return
        match = _SIZE.fullmatch(line) if len(line) <= LINE_BYTES else None
        if match is None:
            raise UpstreamInvalid(f"a chunk's size is {line[:40]!r}; it must be a hex number")
        size = int(match[1], 16)
        if size:
            self._left = size + 2
        else:
            self._in_trailer = True

    def end(self) -> bool:
        """Whether the last chunk has come."""
        return self.complete


def _whole_chunks(data: bytes) -> tuple[list[bytes], int]:
    """The contents of the chunks that ``data`` begins with, and where they end; 0: look closely.

    Many small chunks are told apart by few calls: if the pieces between line ends are sizes and
    contents in turn, and each content is as long as its size says, that is what they are.
    """
    pieces = data.split(b"\r\n")
    whole = (len(pieces) - 1) // 2
    if whole and pieces[2 * whole - 2] == b"0":
        whole -= 1
    contents = pieces[1 : 2 * whole : 2]
    lengths = list(map(len, contents))
    if lengths != list(map(_SHORT.get, pieces[: 2 * whole : 2])):
        return [], 0
    return contents, sum(map(len, pieces[: 2 * whole])) + 4 * whole


def body_reader(framing: Framing, length: int) -> BodyReader:
    """The reader for ``framing``; ``length`` is that of the Content-Length, if it is that."""
    if framing == "chunked":
        return ChunkedBody()
    if framing == "close":
        return CloseBody()
    return LengthBody(length if framing == "length" else 0)
