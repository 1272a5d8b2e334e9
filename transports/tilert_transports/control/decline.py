"""The message of a prefill node that will not write: in place of a claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .grant_id import GrantId

if TYPE_CHECKING:
    from .fields import Fields

__all__ = ("Decline",)


@dataclass(frozen=True, slots=True)
class Decline:
    """Prefill has nothing to write for a grant, and never will have."""

    TYPE: ClassVar = "decline"

    request: str
    incarnation: str
    generation: int
    reason: str

    @property
    def grant(self) -> GrantId:
        """Which one."""
        return GrantId(self.request, self.incarnation, self.generation)

    @classmethod
    def of(cls, grant: GrantId, reason: str) -> Decline:
        """Decline ``grant``."""
        return cls(grant.request, grant.incarnation, grant.generation, reason)

    @classmethod
    def parse(cls, fields: Fields) -> Decline:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        grant = GrantId.parse(fields)
        return cls(grant.request, grant.incarnation, grant.generation, fields.prose("reason"))
