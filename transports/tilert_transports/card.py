"""A transport's visiting card: what a peer needs to connect, as bytes.

In: ``Card``. Out: JSON in UTF-8 with a version, and back. A card travels through the control plane
and may come from an older or a foreign program: everything on it is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import orjson

from .abc import Region
from .errors import HandshakeMismatch

__all__ = ("VERSION", "Card", "Detail", "card_object", "expect", "incarnation_of")

VERSION: Final = 1
MAX_BYTES: Final = 1 << 20

Detail: TypeAlias = "str | int"


@dataclass(frozen=True, slots=True)
class Card:
    """Who a peer is, what may be written there, and how it is reached."""

    transport: str
    incarnation: str
    """32 hex digits."""
    regions: dict[int, int]
    """Bytes of each region that can be written to, by its id."""
    details: dict[str, Detail] = field(default_factory=dict[str, Detail])
    """What this kind of transport needs besides."""

    def encode(self) -> bytes:
        """As bytes; ``decode`` takes them back."""
        return orjson.dumps(
            {
                "version": VERSION,
                "transport": self.transport,
                "incarnation": self.incarnation,
                "regions": list(self.regions.items()),
                "details": self.details,
            }
        )

    @classmethod
    def decode(cls, data: bytes, transport: str) -> Card:
        """Read a card that must be of the kind ``transport``.

        :raises HandshakeMismatch: naming the field, its value and the value it needs.
        """
        fields = card_object(data)
        expect("version", fields.get("version"), VERSION)
        expect("transport", fields.get("transport"), transport)
        return cls(
            transport,
            incarnation_of(fields.get("incarnation")),
            _regions(fields.get("regions")),
            _details(fields.get("details")),
        )

    def text(self, key: str) -> str:
        """A detail that is a string.

        :raises HandshakeMismatch: missing or of another type.
        """
        value = self.details.get(key)
        if not isinstance(value, str):
            raise HandshakeMismatch(f"the peer's card: {key} is {value!r}, needs a string")
        return value

    def number(self, key: str) -> int:
        """A detail that is a whole number of 0 or more.

        :raises HandshakeMismatch: missing or of another type.
        """
        value = self.details.get(key)
        if not isinstance(value, int) or value < 0:
            raise HandshakeMismatch(f"the peer's card: {key} is {value!r}, needs a number")
        return value

    def secret(self, nbytes: int) -> bytes:
        """The detail ``secret``: ``nbytes`` bytes as hex digits.

        :raises HandshakeMismatch: missing, or no such.
        """
        text = self.text("secret")
        try:
            secret = bytes.fromhex(text)
        except ValueError:
            secret = b""
        if len(secret) != nbytes:
            raise HandshakeMismatch(
                f"the peer's card: secret has {len(text)} characters, needs {2 * nbytes} hex digits"
            )
        return secret

    def region_table(self) -> dict[int, Region]:
        """The regions as a connection offers them."""
        return {id_: Region(id_, 0, nbytes) for id_, nbytes in self.regions.items()}


def card_object(data: bytes) -> dict[str, object]:
    """The fields of a card.

    :raises HandshakeMismatch: it is too long, or no JSON object.
    """
    if len(data) > MAX_BYTES:
        raise HandshakeMismatch(f"the peer's card has {len(data)} bytes; at most {MAX_BYTES} fit")
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise HandshakeMismatch(
            f"the peer's card is damaged at byte {error.pos}: no JSON ({len(data)} bytes)"
        ) from error
    if not isinstance(value, dict):
        raise HandshakeMismatch(f"the peer's card is a {type(value).__name__}, needs an object")
    return cast("dict[str, object]", value)


def expect(name: str, got: object, needed: str | int) -> None:
    """Prove that a field has the value that it must have.

    :raises HandshakeMismatch: naming both.
    """
    if got != needed or isinstance(got, bool):
        raise HandshakeMismatch(
            f"the peer's card: {name} is {got!r}, ours is {needed!r};"
            " both sides need the same transport and version"
        )


def incarnation_of(value: object) -> str:
    """The field ``incarnation``.

    :raises HandshakeMismatch: it is not 32 hex digits.
    """
    if isinstance(value, str) and len(value) == 32 and set(value) <= set("0123456789abcdef"):
        return value
    raise HandshakeMismatch(f"the peer's card: incarnation is {value!r}, needs 32 hex digits")


def _regions(value: object) -> dict[int, int]:
    regions: dict[int, int] = {}
    if not isinstance(value, list):
        raise HandshakeMismatch(f"the peer's card: regions is {value!r}, needs a list")
    for item in cast("list[object]", value):
        match item:
            case [int() as id_, int() as nbytes] if id_ >= 0 and nbytes > 0 and id_ not in regions:
                regions[id_] = nbytes
            case _:
                raise HandshakeMismatch(
                    f"the peer's card: {item!r} is no region; [id, bytes] is needed, each id once"
                )
    return regions


def _details(value: object) -> dict[str, Detail]:
    if not isinstance(value, dict):
        raise HandshakeMismatch(f"the peer's card: details is {value!r}, needs an object")
    details: dict[str, Detail] = {}
    for key, item in cast("dict[str, object]", value).items():
        if not isinstance(item, str | int):
            raise HandshakeMismatch(f"the peer's card: {key} is {item!r}, needs a string or number")
        details[key] = item
    return details
