"""Reads the pieces of a SentencePiece model, a protocol buffer (sentencepiece_model.proto)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECES, _TEXT, _TYPE = 1, 1, 3
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_UNKNOWN, _CONTROL = 2, 3


class Piece(NamedTuple):
    text: str
    control: bool


def read_pieces(model: bytes) -> list[Piece]:
    return [_piece(value) for number, value in _fields(model) if number == _PIECES]


def _piece(value: int | bytes) -> Piece:
    assert isinstance(value, bytes)
    fields = dict(_fields(value))
    text = fields[_TEXT]
    assert isinstance(text, bytes)
    return Piece(text.decode(), fields.get(_TYPE) in (_UNKNOWN, _CONTROL))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == _VARINT:
            value, place = _varint(message, place)
        elif wire == _BYTES:
            length, place = _varint(message, place)
            value, place = message[place : place + length], place + length
        else:
            assert wire == _FIXED32
            value, place = message[place : place + 4], place + 4
        yield number, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
