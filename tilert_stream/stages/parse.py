"""Text in, text in channels out: the stage behind the stop strings.

In and out: ``TextDelta``. Each token travels with the last of its text, in that text's channel, so
that reasoning and answer can be counted apart; a token that has no text of its own, such as one
that is a marker, stays in its place. A parser that fails ends nothing: what it held, and all that
follows, is content.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tilert_stream.events import Finished, TextDelta
from tilert_stream.fusion import PASS_THROUGH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tilert_stream.abc import Transform
    from tilert_stream.events import Channel, FinishReason, OutputFormat, TokenLogprob
    from tilert_stream.parsers.abc import OutputParser, OutputReader, Piece
    from tilert_stream.scope import RequestScope

__all__ = ("ParseOutput",)

logger = logging.getLogger(__name__)


class ParseOutput:
    """Makes the parser of each request that asks for one."""

    stage_name = "parse"

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser

    def __call__(self, scope: RequestScope) -> Transform[TextDelta, TextDelta]:
        """The parser of one request; ``PASS_THROUGH`` where its answer is text only."""
        output = scope.request.output
        if output is None:
            return PASS_THROUGH
        try:
            return _Parsing(self._parser.open(output), self._parser.name, called=_end_of(output))
        except Exception:
            logger.exception("the output parser %s failed", self._parser.name)
            return PASS_THROUGH


def _end_of(output: OutputFormat) -> FinishReason:
    """Why an answer ends that has called."""
    return "stop" if output.named_call else "tool_calls"


class _Token(NamedTuple):
    id: int
    end: int
    """Where its text ends, in characters from the start of the answer."""
    logprob: TokenLogprob | None


class _Parsing:
    """One answer: a reader's pieces, and the tokens that they came from."""

    __slots__ = ("_called", "_channel", "_name", "_reader", "_received", "_tokens", "_unread")

    def __init__(
        self, reader: OutputReader, name: str, *, called: FinishReason = "tool_calls"
    ) -> None:
        self._called: FinishReason = called
        self._reader: OutputReader | None = reader
        self._name = name
        self._channel: Channel = "content"
        self._received = 0
        """Characters that have come in; the last of them, ``_unread``, are in no piece yet."""
        self._unread = ""
        self._tokens: deque[_Token] = deque()

    def feed(self, item: TextDelta, /) -> Iterable[TextDelta | Finished]:
        reader, text = self._reader, item.text
        if reader is None:
            return (item,)
        begin = self._received
        if not text:
            self._take(item)
            return () if self._unread else self._release("", begin, begin)
        self._received = begin + len(text)
        self._unread += text
        try:
            pieces = reader.feed(text)
            over = reader.over
        except Exception:  # noqa: BLE001 - a plugin may raise anything; logged there
            return self._fall_back(item)
        if len(pieces) == 1 and not self._tokens and not over:
            piece = pieces[0]
            if piece.end == self._received:
                self._unread = ""
                self._channel = piece.channel
                return (_whole(item, piece, begin),)
        self._take(item)
        out: list[TextDelta | Finished] = [*self._pieces(pieces)]
        if over:
            out.append(Finished(self._called if reader.called else "stop"))
        return out

    def finish(self, outcome: Finished, /) -> Iterable[TextDelta | Finished]:
        reader = self._reader
        if reader is None:
            return ()
        try:
            pieces = reader.finish()
            called = reader.called
        except Exception:  # noqa: BLE001 - as in feed
            return self._fall_back(None)
        out: list[TextDelta | Finished] = [*self._pieces(pieces)]
        # What is read without a piece, line feeds beside a marker, may be an answer's last tokens.
        out += self._release("", self._received, self._received)
        if called and outcome.reason == "stop" and outcome.stop_reason is None:
            out.append(replace(outcome, reason=self._called))
        return out

    def _fall_back(self, item: TextDelta | None) -> Sequence[TextDelta]:
        logger.exception("the output parser %s failed: the rest is text", self._name)
        self._reader = None
        if item is not None:
            self._take(item)
        self._channel = "content"
        return self._release(self._unread, self._received - len(self._unread), self._received)

    def _take(self, item: TextDelta) -> None:
        begin = self._received - len(item.text)
        logprobs = item.logprobs or (None,) * len(item.ids)
        for token_id, end, logprob in zip(item.ids, item.ends, logprobs, strict=True):
            self._tokens.append(_Token(token_id, begin + end, logprob))

    def _pieces(self, pieces: Sequence[Piece]) -> Iterable[TextDelta]:
        if not pieces:
            return
        for piece in pieces:
            self._channel = piece.channel
            yield from self._release(piece.text, piece.begin, piece.end, piece)
        self._unread = self._unread[pieces[-1].end - self._received or len(self._unread) :]

    def _release(
        self, text: str, begin: int, end: int, piece: Piece | None = None
    ) -> tuple[TextDelta, ...]:
        """``text``, and the tokens that end up to ``end``, if there is either."""
        tokens: list[_Token] = []
        while self._tokens and self._tokens[0].end <= end:
            tokens.append(self._tokens.popleft())
        call = None if piece is None else piece.call
        if not (text or tokens or call):
            return ()
        length = len(text)
        return (
            TextDelta(
                text,
                tuple(token.id for token in tokens),
                tuple(min(max(token.end - begin, 0), length) for token in tokens),
                tuple(token.logprob for token in tokens if token.logprob is not None) or None,
                self._channel,
                0 if piece is None else piece.call_index,
                call,
            ),
        )


def _whole(item: TextDelta, piece: Piece, begin: int) -> TextDelta:
    """``item`` as the one piece that was made of it."""
    channel, text = piece.channel, piece.text
    if text == item.text:
        if channel == "content":
            return item
        ends = item.ends
    else:
        length, moved = len(text), piece.begin - begin
        ends = tuple([min(max(end - moved, 0), length) for end in item.ends])
    return TextDelta(text, item.ids, ends, item.logprobs, channel, piece.call_index, piece.call)
