"""One field of a request body, and what this server does with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..events import Capability
    from .envelope import Endpoint

__all__ = ("Answer", "Parameter")

Answer: TypeAlias = Literal["served", "inert", "refused"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a request body."""

    name: str
    answer: Answer
    note: str
    """Served: what it does. Inert: why nothing follows. Refused: what it would need."""
    no_effect: tuple[object, ...] = ()
    """Of a refused field, or one that needs a capability: the values that always are fine."""
    endpoints: tuple[Endpoint, ...] = ("chat", "completion")
    needs: Capability | None = None
    """What the model must be capable of for other values than those."""
    without: str = ""
    """Why they are refused where it is not."""

    def refuses(self, value: object, capabilities: Collection[Capability] = ()) -> bool:
        """Whether ``value`` asks for what cannot be given."""
        if self.answer != "refused" and (self.needs is None or self.needs in capabilities):
            return False
        # True == 1 in Python, not in JSON.
        return not any(
            value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
            for allowed in (None, *self.no_effect)
        )
