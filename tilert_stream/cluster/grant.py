"""A decode node's promise: what it is asked for, how it answers, and what it will be called."""

from __future__ import annotations

import math
from os import urandom
from typing import TYPE_CHECKING, Final, NamedTuple

from .prompt_digest import prompt_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..events import GenerateRequest

__all__ = ("FORETOLD", "Grant", "foretold_grant", "grant_asked", "read_grant")

FORETOLD: Final = 2**32
"""From here on generations are chosen by routers; see ``tilert_transports.control.grant_id``."""


class Grant(NamedTuple):
    """A slot that a decode node holds for one request."""

    request: str
    incarnation: str | None
    """The node's; a restarted node counts its generations anew. None: a stock node."""
    generation: int
    """0: a stock node, which promises nothing."""
    region: int
    ttl: float
    """Seconds until it expires, unless it is renewed."""

    @property
    def promised(self) -> bool:
        """Whether the node holds anything for it."""
        return self.incarnation is not None


def foretold_grant(request: str, incarnation: str) -> Grant:
    """A grant by the name that the router gives it, before the node has granted anything."""
    generation = FORETOLD + int.from_bytes(urandom(7)) % (2**53 - FORETOLD)
    return Grant(request, incarnation, generation, 0, math.inf)


def grant_asked(
    request: GenerateRequest,
    attempt: int,
    layout: Mapping[str, object] | None,
    foretold: Grant | None,
) -> dict[str, object]:
    """The body of ``POST /pd/reserve``.

    :param attempt: names this call to a cancel.
    :param layout: of prefill's KV caches, where it is known.
    :param foretold: the grant as prefill may have been told it.
    """
    prompt = request.prompt_ids
    asked: dict[str, object] = {
        "rid": request.id,
        "attempt": attempt,
        "max_len": len(prompt) + request.limits.max_tokens,
        "prompt": {
            "tokens": len(prompt),
            "last_token": prompt[-1],
            "digest": prompt_digest(prompt),
        },
        "layout": layout,
    }
    if needs := request.sampling.needs():
        asked["needs"] = needs
    if foretold is not None:
        asked["generation"] = foretold.generation
    return asked


def read_grant(fields: Mapping[str, object], request: str) -> Grant:
    """What the node has answered.

    :raises ValueError: naming the field that is missing or wrong.
    """
    incarnation, ttl = fields.get("incarnation"), fields.get("ttl")
    if not isinstance(incarnation, str) or not incarnation:
        raise ValueError("incarnation is no text")
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl < math.inf:
        raise ValueError(f"ttl is {ttl!r:.40}; it must be seconds, above 0")
    generation, region = fields.get("generation"), fields.get("region")
    if type(generation) is not int or type(region) is not int:
        raise ValueError("generation and region must be integers")
    return Grant(request, incarnation, generation, region, float(ttl))
