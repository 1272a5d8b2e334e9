"""The text ends before a stop string: the stage behind the detokenizer.

In and out: ``TextDelta``. Held back is only a suffix that is the beginning of some stop string;
the ids of held text travel with it. A match ends the request with ``Finished("stop")``.

All stop strings are sought at once, a character at a time, by one automaton (Aho and Corasick,
"Efficient string matching", 1975): however many stop strings there are, each character is looked
at once, and text in which no stop string begins is skipped by a compiled search.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tilert_stream.errors import InvalidRequest
from tilert_stream.events import Finished, TextDelta
from tilert_stream.fusion import PASS_THROUGH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tilert_stream.abc import Transform
    from tilert_stream.events import TokenLogprob
    from tilert_stream.scope import RequestScope

__all__ = ("StopAutomaton", "StopMatcher", "StopStrings")


class StopStrings:
    """Makes a ``StopMatcher`` for each request that has stop strings."""

    def __call__(self, scope: RequestScope) -> Transform[TextDelta, TextDelta]:
        """The matcher of one request; ``PASS_THROUGH`` where there is nothing to match."""
        request = scope.request
        if not request.stop:
            return PASS_THROUGH
        return StopMatcher(
            request.stop,
            include_stop=request.include_stop,
            min_tokens=request.limits.min_tokens,
        )


class StopAutomaton:
    """Every beginning of a stop string is a state; state 0 is the empty one.

    :param stop: the stop strings.
    :raises ~tilert_stream.errors.InvalidRequest: one of them is empty.
    """

    __slots__ = ("_back", "_next", "held", "matched", "start")

    def __init__(self, stop: Sequence[str]) -> None:
        if "" in stop:
            raise InvalidRequest(
                "stop has an empty string, which every text contains; each stop string needs at"
                " least one character: leave it out",
                param="stop",
            )
        self._next: list[dict[str, int]] = [{}]
        self._back = [0]
        self.matched: list[str | None] = [None]
        """state → the longest stop string that is complete there."""
        self.held = [0]
        """state → length of the longest suffix that may still become a stop string."""
        self.start = re.compile("[" + "".join(map(re.escape, {string[0] for string in stop})) + "]")
        """Finds the next character with which a stop string begins."""
        for string in stop:
            self._add(string)
        self._link()

    def step(self, state: int, character: str) -> int:
        """The longest beginning of a stop string that the text ends with after ``character``."""
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if not state:
                return 0
            state = self._back[state]

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._back.append(0)
                self.matched.append(None)
                self.held.append(0)
            state = following
        self.matched[state] = string

    def _link(self) -> None:
        """Breadth first: what a state falls back to is shorter, so it is complete already."""
        queue = deque((state, 1) for state in self._next[0].values())
        while queue:
            state, depth = queue.popleft()
            back = self._back[state]
            if self.matched[state] is None:
                self.matched[state] = self.matched[back]
            self.held[state] = depth if self._next[state] else self.held[back]
            for character, following in self._next[state].items():
                self._back[following] = self.step(back, character)
                queue.append((following, depth + 1))


class _Token(NamedTuple):
    id: int
    end: int
    """Where its text ends, in characters from the start of the stream."""
    logprob: TokenLogprob | None


class StopMatcher:
    """Cuts one request's text at the stop string that is complete first.

    Of several that are complete at the same character the longest counts. What comes out does
    not depend on how the text was split into deltas.

    :param stop: none is empty.
    :param include_stop: the stop string stays in the text; then nothing is ever held back.
    :param min_tokens: a stop string that one of the first ``min_tokens`` tokens completes ends
        nothing and stays in the text (vLLM's rule).
    """

    __slots__ = (
        "_automaton",
        "_include_stop",
        "_min_tokens",
        "_pieces",
        "_received",
        "_sent",
        "_state",
        "_token_count",
        "_tokens",
    )

    def __init__(
        self, stop: Sequence[str], *, include_stop: bool = False, min_tokens: int = 0
    ) -> None:
        self._automaton = StopAutomaton(stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._state = 0
        self._received = 0
        """Characters that have come in …"""
        self._sent = 0
        """… and those that have gone out; those between are in ``_pieces``."""
        self._pieces: deque[str] = deque()
        self._tokens: deque[_Token] = deque()
        self._token_count = 0

    def feed(self, item: TextDelta, /) -> Iterable[TextDelta | Finished]:
        """What is certain not to be part of a stop string, or the cut text and the end."""
        text = item.text
        if not self._state and not self._automaton.start.search(text):
            # In state 0 nothing is held: the delta can go as it is.
            self._received += len(text)
            self._sent = self._received
            self._token_count += len(item.ids)
            return (item,)
        end, matched = self._scan(item)
        if matched is not None:
            return self._cut(item, end, matched)
        self._take(item)
        if self._include_stop:
            return self._release(self._received)
        return self._release(self._received - self._automaton.held[self._state])

    def finish(self, _outcome: Finished, /) -> Iterable[TextDelta]:
        """What was held back: no stop string came of it."""
        return self._release(self._received)

    def _scan(self, item: TextDelta) -> tuple[int, str | None]:
        """Where in ``item``'s text the first stop string that counts is complete, and which."""
        automaton, state, text = self._automaton, self._state, item.text
        step, matched, start = automaton.step, automaton.matched, automaton.start
        place = 0
        while place < len(text):
            if not state:
                found = start.search(text, place)
                if found is None:
                    break
                place = found.start()
            state = step(state, text[place])
            place += 1
            string = matched[state]
            if string is not None and self._counts(item, place):
                return place, string
        self._state = state
        return len(text), None

    def _counts(self, item: TextDelta, end: int) -> bool:
        """Whether the token that completes the text up to ``end`` is late enough to stop."""
        if not self._min_tokens:
            return True
        index = min(bisect_left(item.ends, end) + 1, len(item.ids))
        return self._token_count + index > self._min_tokens

    def _cut(self, item: TextDelta, end: int, matched: str) -> Iterable[TextDelta | Finished]:
        count = bisect_left(item.ends, end) + 1
        logprobs = item.logprobs and item.logprobs[:count]
        self._take(TextDelta(item.text[:end], item.ids[:count], item.ends[:count], logprobs))
        kept = self._received if self._include_stop else self._received - len(matched)
        self._tokens = deque(token._replace(end=min(token.end, kept)) for token in self._tokens)
        return (*self._release(kept), Finished("stop", stop_reason=matched))

    def _take(self, item: TextDelta) -> None:
        logprobs = item.logprobs or (None,) * len(item.ids)
        for token_id, end, logprob in zip(item.ids, item.ends, logprobs, strict=True):
            self._tokens.append(_Token(token_id, self._received + end, logprob))
        if item.text:
            self._pieces.append(item.text)
        self._received += len(item.text)
        self._token_count += len(item.ids)

    def _release(self, end: int) -> tuple[TextDelta, ...]:
        """The text up to ``end`` and the tokens that end in it, if there is either."""
        begin = self._sent
        parts: list[str] = []
        while self._sent < end:
            piece = self._pieces.popleft()
            room = end - self._sent
            if len(piece) > room:
                self._pieces.appendleft(piece[room:])
                piece = piece[:room]
            parts.append(piece)
            self._sent += len(piece)
        tokens: list[_Token] = []
        while self._tokens and self._tokens[0].end <= end:
            tokens.append(self._tokens.popleft())
        if not parts and not tokens:
            return ()
        logprobs = tuple(token.logprob for token in tokens if token.logprob is not None)
        return (
            TextDelta(
                "".join(parts),
                tuple(token.id for token in tokens),
                tuple(token.end - begin for token in tokens),
                logprobs or None,
            ),
        )
