"""Which grant a prefill node speaks of before it has claimed one, or in place of claiming it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .fields import Fields
    from .frames import JSONObject

__all__ = ("FORETOLD", "GrantId")

FORETOLD: Final = 2**32
"""Generations from here to 2**53 - 1 are random ones that routers choose, so that prefill can be
told of a grant before the decode node has given it; a decode node counts its own from 1."""


@dataclass(frozen=True, slots=True)
class GrantId:
    """A grant, as the router has it from the decode node. Only who was given it knows all of it."""

    request: str
    incarnation: str
    """The decode node's: a restarted node counts its generations anew."""
    generation: int

    def to_json(self) -> JSONObject:
        """The object that stands in a HELLO or REFUSED."""
        return {
            "request": self.request,
            "incarnation": self.incarnation,
            "generation": self.generation,
        }

    @classmethod
    def parse(cls, fields: Fields) -> GrantId:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(
            request=fields.text("request"),
            incarnation=fields.text("incarnation"),
            generation=fields.integer("generation", least=1),
        )
