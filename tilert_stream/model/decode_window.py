"""Text from a tokenizer whose decoder looks at several tokens at once (WordPiece, Metaspace).

In: token ids, one at a time. Out: text, as soon as it seems certain. The last few ids are decoded
again with each new one, and what has grown at the end is new. Text that has been given out is
never taken back, however a later decode may read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .byte_table import REPLACEMENT

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from typing import Protocol

    class Decode(Protocol):
        """Whole ids to whole text."""

        def __call__(self, ids: Sequence[int], /) -> str: ...


__all__ = ("DecodeWindow",)

_CONTEXT: Final = 6
"""Ids kept when the window is cut: a character of four byte tokens, and what it joins on to."""
_LONGEST: Final = 24
"""Ids decoded at once; so many that a window is cut, and decoded twice, only now and then."""
_UNSURE: Final = 3
"""U+FFFD at the end that may be bytes of a character to come: there are at most three."""


class DecodeWindow:
    """One request's window over its ids.

    Where a decoder rewrites earlier text (WordPiece's clean-up joins "do" and "n't"), what has
    been given out stays; what is new is counted from the end of the earlier decode.

    :param decode: for whole sequences.
    :param known: ids outside give no text and do not enter the window.
    :param prompt_ids: the window begins in them; their own text never comes out.
    """

    __slots__ = ("_decode", "_known", "_of_prompt", "_sent", "_text", "_window")

    def __init__(self, decode: Decode, known: Container[int], prompt_ids: Sequence[int]) -> None:
        self._decode = decode
        self._known = known
        self._window: list[int] = []
        for token_id in reversed(prompt_ids):
            if token_id in known:
                self._window.insert(0, token_id)
                if len(self._window) == _CONTEXT:
                    break
        self._text = decode(self._window) if self._window else ""
        self._sent = _certain(self._text)
        self._of_prompt = len(self._text) - self._sent

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` makes certain."""
        if token_id not in self._known:
            return ""
        self._window.append(token_id)
        self._text = self._decode(self._window)
        new = self._take(_certain(self._text))
        if len(self._window) >= _LONGEST:
            self._cut()
        return new

    def push_all(self, ids: Sequence[int]) -> list[str]:
        """``push`` of each."""
        return list(map(self.push, ids))

    def flush(self) -> str:
        """The end has come: what looked unfinished is what it is."""
        return self._take(len(self._text))

    def _take(self, end: int) -> str:
        if end <= self._sent:
            return ""
        new = self._text[self._sent : end]
        self._sent = end
        while self._of_prompt and new.startswith(REPLACEMENT):
            self._of_prompt -= 1
            new = new[1:]
        self._of_prompt = 0
        return new

    def _cut(self) -> None:
        unsent = len(self._text) - self._sent
        del self._window[:-_CONTEXT]
        self._text = self._decode(self._window)
        self._sent = max(0, len(self._text) - unsent)


def _certain(text: str) -> int:
    """How many characters of ``text`` can no longer change."""
    unsure = len(text) - len(text.rstrip(REPLACEMENT))
    return len(text) - min(unsure, _UNSURE)
