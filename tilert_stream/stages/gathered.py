"""What the answers to one request come to together, where it asks for several (``n``)."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ("Gathered",)


@dataclass(slots=True)
class Gathered:
    """Filled by each answer's encoder."""

    completion_tokens: int = 0
    reasoning_tokens: int = 0
    choices: dict[int, dict[str, object]] = field(default_factory=dict[int, dict[str, object]])
    """Whole answers by their index; none where they are streamed."""
    top: dict[str, object] = field(default_factory=dict[str, object])
    """Further members of the response itself."""
