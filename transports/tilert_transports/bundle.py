"""The card of ``auto``: the cards of its parts, and which region is which in each.

In: ``Bundle``. Out: JSON in UTF-8, and back, checked.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from typing import Final, NamedTuple, cast

import orjson

from .card import VERSION, card_object, expect, incarnation_of
from .errors import HandshakeMismatch

__all__ = ("Bundle", "Part")

NAME: Final = "auto"


class Part(NamedTuple):
    """One transport of a bundle."""

    card: bytes
    regions: dict[int, int]
    """The part's region ids, by the bundle's."""


class Bundle(NamedTuple):
    """What a peer needs to choose and to connect."""

    incarnation: str
    host: str
    """See ``HOST_ID``."""
    parts: dict[str, Part]

    def encode(self) -> bytes:
        """As bytes; ``decode`` takes them back."""
        parts = [
            [name, b64encode(part.card).decode(), list(part.regions.items())]
            for name, part in self.parts.items()
        ]
        return orjson.dumps(
            {
                "version": VERSION,
                "transport": NAME,
                "incarnation": self.incarnation,
                "host": self.host,
                "parts": parts,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Bundle:
        """Read the card of another ``auto``.

        :raises HandshakeMismatch: naming the field, its value and the value it needs.
        """
        fields = card_object(data)
        expect("version", fields.get("version"), VERSION)
        expect("transport", fields.get("transport"), NAME)
        host, parts = fields.get("host"), fields.get("parts")
        if not isinstance(host, str) or not isinstance(parts, list):
            raise HandshakeMismatch(
                f"the peer's card: host is {host!r}, parts {parts!r};"
                " a string and a list are needed"
            )
        read = [_part(item) for item in cast("list[object]", parts)]
        return cls(incarnation_of(fields.get("incarnation")), host, dict(read))


def _part(item: object) -> tuple[str, Part]:
    fields = cast("list[object]", item) if isinstance(item, list) else []
    match fields:
        case [str() as name, str() as card, pairs] if isinstance(pairs, list):
            regions = dict(_pair(pair) for pair in cast("list[object]", pairs))
            try:
                return name, Part(b64decode(card, validate=True), regions)
            except Error as error:
                raise HandshakeMismatch(
                    f"the peer's card: the part {name} is no base64: {error}"
                ) from error
        case _:
            raise HandshakeMismatch(
                f"the peer's card: {item!r} is no part; [name, card, regions] is needed"
            )


def _pair(item: object) -> tuple[int, int]:
    match item:
        case [int() as id_, int() as part_id]:
            return id_, part_id
        case _:
            raise HandshakeMismatch(f"the peer's card: {item!r} is no pair of region ids")
