"""The texts that an answer's parts are told apart by, sought in text that comes piece by piece.

One compiled search finds the first whole marker, or the end of the text that may be the beginning
of one: only that is held back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("Markers",)


class Markers:
    """A set of markers, of which none is the beginning of another.

    :param texts: none is empty; no text at all is never found.
    :param line_feeds: so many line feeds before a marker belong to it. Chat templates write them,
        and take them away when they read an answer back.
    :raises ValueError: a marker is the beginning of another, which could then never be found.
    """

    __slots__ = ("match", "search")

    def __init__(self, texts: Sequence[str], *, line_feeds: int = 0) -> None:
        for text in texts:
            if any(other.startswith(text) for other in texts if other is not text):
                raise ValueError(f"the marker {text!r} is the beginning of another marker")
        pattern = _pattern(texts, line_feeds) if texts else re.compile(r"(?!)()")
        self.search = pattern.search
        """The first marker (group 1), or (without group 1) the end that may become one."""
        self.match = pattern.match
        """The same, where it stands right at the place that is looked at."""


def _pattern(texts: Sequence[str], line_feeds: int) -> re.Pattern[str]:
    whole = "|".join(map(re.escape, texts))
    begun = "|".join(map(_beginning, texts))
    if not line_feeds:
        return re.compile(rf"({whole})|(?:{begun})\Z")
    return re.compile(rf"\n{{0,{line_feeds}}}(?:({whole})|(?:{begun})\Z)|\n{{1,{line_feeds}}}\Z")


def _beginning(text: str) -> str:
    """A pattern for every proper beginning of ``text`` but the empty one."""
    pattern = ""
    for character in reversed(text[1:-1]):
        pattern = f"(?:{re.escape(character)}{pattern})?"
    return re.escape(text[0]) + pattern
