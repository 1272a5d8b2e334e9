"""Bytes of a control connection → JSON objects, and back.

A frame is its length (4 bytes, big-endian) and that many bytes of JSON, always one object: the
framing that TileRT's ``tilert-pd`` uses (``tilert/pd_vllm/wire.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, cast

import orjson

from .errors import FrameError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ("MAX_DEPTH", "MAX_FRAME_BYTES", "FrameReader", "JSONObject", "encode_frame", "frame")

JSONObject: TypeAlias = "dict[str, object]"

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
MAX_DEPTH: Final = 16
"""No message of either dialect nests deeper than 4; the bound keeps recursion out of reach."""

_PREFIX: Final = 4
_OPENERS: Final = (b"[", b"{")


def encode_frame(content: Mapping[str, object]) -> bytes:
    """One object as a frame.

    :raises FrameError: it is over 16 MiB.
    """
    return frame(orjson.dumps(content))


def frame(body: bytes) -> bytes:
    """``body``, an encoded JSON object, behind its length.

    :raises FrameError: it is over 16 MiB.
    """
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(
            f"a message of {len(body)} bytes is over {MAX_FRAME_BYTES}; make its card smaller"
        )
    return len(body).to_bytes(_PREFIX, "big") + body


class FrameReader:
    """Cuts a stream of bytes into JSON objects, however the bytes arrive.

    :param max_bytes: the longest frame taken; may be raised later (a stranger gets less room than
        a node that has proved itself).
    """

    __slots__ = ("_buffer", "_failure", "max_bytes")

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()
        self._failure: FrameError | None = None

    def feed(self, data: bytes) -> Iterator[JSONObject]:
        """Take bytes; yield the objects that are complete.

        The bytes are taken at once, whether or not the iterator is used.

        :raises FrameError: while iterating, after the good frames: what follows is no frame, and
            nothing after it can be trusted. Raised again by every later call.
        """
        self._buffer += data
        return self._objects()

    def end(self) -> None:
        """Tell it that the connection has ended.

        :raises FrameError: in the middle of a frame.
        """
        if self._failure is not None:
            raise self._failure
        held = len(self._buffer)
        if held >= _PREFIX:
            raise FrameError(
                f"the connection ended {held - _PREFIX} bytes into a frame of {self._length()}"
            )
        if held:
            raise FrameError(f"the connection ended {held} bytes into a frame's length of 4")

    def _length(self) -> int:
        return int.from_bytes(self._buffer[:_PREFIX], "big")

    def _objects(self) -> Iterator[JSONObject]:
        while True:
            if self._failure is not None:
                raise self._failure
            try:
                content = self._next()
            except FrameError as error:
                self._failure = error
                self._buffer.clear()
                raise
            if content is None:
                return
            yield content

    def _next(self) -> JSONObject | None:
        if len(self._buffer) < _PREFIX:
            return None
        length = self._length()
        if not 2 <= length <= self.max_bytes:
            # A client of another protocol shows its first word here: "GET " is 1195725856.
            start = bytes(self._buffer[:_PREFIX])
            raise FrameError(
                f"the frame's length is {length} (bytes {start!r}); it must be from 2 to"
                f" {self.max_bytes}: does the peer speak another protocol?"
            )
        end = _PREFIX + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_PREFIX:end])
        del self._buffer[:end]
        return _decode(body)


def _decode(body: bytes) -> JSONObject:
    try:
        content: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"a frame of {len(body)} bytes is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise FrameError(f"a frame holds a JSON {type(content).__name__}, not an object")
    # Each level costs a bracket, so that most messages are not walked at all.
    if sum(body.count(opener) for opener in _OPENERS) > MAX_DEPTH and _is_deep(
        cast("JSONObject", content)
    ):
        raise FrameError(f"a frame nests deeper than {MAX_DEPTH} levels")
    return cast("JSONObject", content)


def _is_deep(content: JSONObject) -> bool:
    level: list[object] = [content]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: object) -> Iterator[object]:
    """The arrays and objects that ``value`` holds directly."""
    if isinstance(value, dict):
        held = list(cast("JSONObject", value).values())
    else:
        held = cast("list[object]", value)
    for child in held:
        if isinstance(child, dict | list):
            yield cast("object", child)
