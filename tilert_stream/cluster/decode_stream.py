"""A decode node's lines in; the request's tokens and its end out. No I/O.

Rules:

1. The first token is the one that prefill has made: it has left already, and is only compared.
2. The router ends the request by itself where its limits do (``Limits.cut``), whatever the node
   goes on to say. That is read when the client has its end: the last token does not wait for it.
3. A failure is never a finish reason: a stream that ends without ``done``, or whose ``done`` does
   not count what has come, is an error.
4. What one read has brought becomes one batch, and the end travels with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from ..events import Finished, TokenBatch
from ..http.client.errors import UpstreamClosed, UpstreamInvalid
from .decode_lines import DecodeDone, DecodeError, DecodeLines, DecodeTokens
from .errors import DecodeFailed

if TYPE_CHECKING:
    from ..events import Limits, TokenLogprob

__all__ = ("DecodeItem", "DecodeStream")

MESSAGE_MAX: Final = 2000
"""Characters of the node's own words that are passed on."""

_DONE: Final = (b'{"done":true', b'{"done": true')

DecodeItem: TypeAlias = "TokenBatch | Finished"


class _News:
    """What one read has brought."""

    __slots__ = ("end", "ids", "logprobs", "stop_logprob")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.end: Finished | None = None
        self.stop_logprob: TokenLogprob | None = None

    def logprobs_of(self, count: int) -> tuple[TokenLogprob, ...] | None:
        """The first ``count``; None where the node has not sent one an id."""
        whole = bool(self.logprobs) and len(self.logprobs) == len(self.ids)
        return tuple(self.logprobs[:count]) if whole else None


class DecodeStream:
    """One request's stream.

    :param first_token: what prefill has made, and the node begins with.
    :param label: what the node is called in errors.
    """

    __slots__ = (
        "_emitted",
        "_first_token",
        "_label",
        "_limits",
        "_lines",
        "_node_ended",
        "_seen",
        "_unread",
        "finished",
    )

    def __init__(self, limits: Limits, first_token: int, *, label: str) -> None:
        self._limits = limits
        self._first_token = first_token
        self._label = label
        self._lines = DecodeLines()
        self._seen = 0
        self._emitted = 1
        self.finished: Finished | None = None
        """How the request ended; what is fed after that is thrown away."""
        self._node_ended = False
        self._unread = b""
        """What has come behind the end."""

    @property
    def node_ended(self) -> bool:
        """The node has said that it is done with the request, or has given it up."""
        if self._unread:
            data, self._unread = self._unread, b""
            if data.startswith(_DONE) and b"\n" in data:
                # Nothing else of it matters: the client has its end.
                self._node_ended = self._lines.ended = True
            else:
                self._read(data, _News())
        return self._node_ended

    def feed(self, data: bytes) -> list[DecodeItem]:
        """The tokens that ``data`` brings, as one batch, and the end if it is among them."""
        if self.finished is not None:
            self._unread += data
            return []
        if self._seen:
            ids, end = self._lines.feed_ids(data)
            count, finished = self._limits.cut(ids, self._emitted)
            if end and (end == len(data) or finished is not None):
                # Nothing but ids, as nearly every read, or nothing else that matters to the client.
                self._seen += len(ids)
                self._unread = data[end:]
                return self._emit_ids(ids, count, finished)
        news = _News()
        self._read(data, news)
        return self._emit(news)

    def _read(self, data: bytes, news: _News) -> None:
        try:
            for line in self._lines.feed(data):
                if not isinstance(line, DecodeTokens):
                    self._node_ended = True
                    news.end = self._end(line)
                    if isinstance(line, DecodeDone):
                        news.stop_logprob = line.stop_logprob
                elif self.finished is None:
                    self._take(line, news)
        except ValueError as error:
            self._lines.ended = True
            news.end = Finished.failed(
                UpstreamInvalid(f"the stream of {self._label} cannot be read: {error}")
            )

    def _take(self, line: DecodeTokens, news: _News) -> None:
        ids, logprobs = line.ids, line.logprobs
        if ids and not self._seen:
            if ids[0] != self._first_token:
                raise ValueError(
                    f"it begins with token {ids[0]}; prefill has made {self._first_token}"
                )
            ids, logprobs = ids[1:], logprobs and logprobs[1:]
        self._seen += len(line.ids)
        news.ids += ids
        news.logprobs += logprobs or ()

    def _end(self, line: DecodeDone | DecodeError) -> Finished:
        if isinstance(line, DecodeError):
            message = line.message[:MESSAGE_MAX]
            return Finished.failed(DecodeFailed(f"{self._label} gave the request up: {message}"))
        if line.finish_reason not in ("stop", "length"):
            reason = line.finish_reason[:MESSAGE_MAX] or "no reason"
            return Finished.failed(DecodeFailed(f"{self._label} ended the request early: {reason}"))
        # A node that had room for the first token alone may leave it out.
        seen = max(self._seen, 1)
        if line.count is not None and line.count != seen:
            raise ValueError(f"it ends with n {line.count} after {seen} tokens")
        if line.finish_reason == "length":
            return Finished("length")
        return Finished("stop", line.stop_token_id)

    def _emit_ids(
        self, ids: tuple[int, ...], count: int, finished: Finished | None
    ) -> list[DecodeItem]:
        self._emitted += count
        self.finished = finished
        if finished is None:
            return [TokenBatch(ids)]
        stopped = finished.reason == "stop"
        batch = TokenBatch(ids[:count], ends_with_stop=stopped)
        return [batch, finished] if count else [finished]

    def _emit(self, news: _News) -> list[DecodeItem]:
        ids, end = news.ids, news.end
        stop = end.stop_reason if end is not None else None
        if isinstance(stop, int):
            ids.append(stop)
            if news.stop_logprob is not None:
                news.logprobs.append(news.stop_logprob)
        count, cut = self._limits.cut(ids, self._emitted)
        if cut is None and isinstance(stop, int):
            # The node knows a stop token that this router does not.
            cut = Finished("stop")
        stopped = cut is not None and cut.reason == "stop"
        self.finished = end if cut is None else cut
        self._emitted += count
        items: list[DecodeItem] = []
        if count:
            items.append(TokenBatch(tuple(ids[:count]), news.logprobs_of(count), stopped))
        if self.finished is not None:
            items.append(self.finished)
        return items

    def eof(self) -> list[DecodeItem]:
        """The node has ended its answer; an error if it has not said ``done`` before."""
        if self.finished is not None:
            return []
        self.finished = Finished.failed(
            UpstreamClosed(f"{self._label} ended its stream without saying that it is done")
        )
        return [self.finished]
