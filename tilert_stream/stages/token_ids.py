"""Text and its token ids in, the answer of ``/inference/v1/generate`` out: the ids.

Streamed, each wake's ids are one event; the end, usage (where asked for) and ``[DONE]`` are one
write, and a failure is an event without ``[DONE]``, all as in ``sse``. The pipeline's text goes
unread but for stop strings, which end an answer here too: its ids go up to the token that completes
one. Log-probabilities have a chat's shape, with ``token_id:N`` for tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..openai.chunks import ChunkTemplate
from ..openai.encoding import dumps
from ..openai.errors import error_body
from ..openai.objects import response, token_choice
from .details import TokenDetails
from .gathered import Gathered
from .sse_details import DONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..abc import Transform
    from ..events import Finished, TextDelta
    from ..openai.envelope import Envelope
    from ..openai.token_names import TokenNames
    from ..scope import RequestScope

__all__ = ("EncodeTokenIds",)


class EncodeTokenIds:
    """Makes the encoder of one request for tokens.

    :param names: spells tokens in log-probabilities.
    :param done_after_error: send ``[DONE]`` after an error too.
    :param gathered: what the request's answers come to together, where there are several.
    """

    stage_name = "token_ids"

    def __init__(
        self,
        envelope: Envelope,
        names: TokenNames,
        *,
        done_after_error: bool = False,
        gathered: Gathered | None = None,
    ) -> None:
        self._envelope = envelope
        self._names = names
        self._done_after_error = done_after_error
        self._gathered = gathered

    def __call__(self, scope: RequestScope) -> Transform[TextDelta, bytes]:
        """The encoder for ``scope``'s request."""
        details = TokenDetails(self._envelope, self._names, scope)
        gathered = self._gathered or Gathered()
        if self._envelope.stream:
            done = self._done_after_error
            return _Streamed(self._envelope, scope, details, gathered, done_after_error=done)
        return _Whole(self._envelope, scope, details, gathered)


class _Whole:
    __slots__ = ("_details", "_envelope", "_gathered", "_ids", "_scope")

    def __init__(
        self, envelope: Envelope, scope: RequestScope, details: TokenDetails, gathered: Gathered
    ) -> None:
        self._envelope = envelope
        self._scope = scope
        self._details = details
        self._gathered = gathered
        self._ids: list[int] = []

    def feed(self, delta: TextDelta) -> Iterable[bytes]:
        self._ids += delta.ids
        self._details.take(delta)
        return ()

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        count = len(self._ids)
        if self._scope.record is not None:
            self._scope.record.completion_tokens = count
        if outcome.error is not None or outcome.reason == "cancelled":
            return ()
        envelope, gathered = self._envelope, self._gathered
        choice = token_choice(envelope, self._ids, outcome, self._details.logprobs())
        gathered.choices[envelope.index] = choice
        gathered.completion_tokens += count
        gathered.top |= self._details.prompt()
        if envelope.choices > 1:
            return ()
        return (dumps(response(envelope, (choice,), self._scope.usage, count) | gathered.top),)


class _Streamed:
    __slots__ = (
        "_chunks",
        "_details",
        "_done_after_error",
        "_envelope",
        "_gathered",
        "_scope",
        "_tokens",
    )

    def __init__(
        self,
        envelope: Envelope,
        scope: RequestScope,
        details: TokenDetails,
        gathered: Gathered,
        *,
        done_after_error: bool,
    ) -> None:
        self._envelope = envelope
        self._scope = scope
        self._details = details
        self._gathered = gathered
        self._done_after_error = done_after_error
        self._chunks = ChunkTemplate(envelope)
        self._tokens = 0

    def feed(self, delta: TextDelta) -> Iterable[bytes]:
        if not delta.ids:
            return ()
        self._tokens += len(delta.ids)
        self._gathered.completion_tokens += len(delta.ids)
        self._details.take(delta)
        return (self._event(delta.ids, None),)

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        if self._scope.record is not None:
            self._scope.record.completion_tokens = self._tokens
        alone = self._envelope.choices == 1
        if outcome.error is not None:
            if not alone:
                return ()
            event = b"data: " + error_body(outcome.error) + b"\n\n"
            return (event + DONE if self._done_after_error else event,)
        if outcome.reason == "cancelled":
            return ()
        end = self._event((), outcome)
        if not alone:
            return (end,)
        if self._envelope.include_usage:
            usage = self._chunks.usage(self._scope.usage, self._tokens)
            end += b"data: " + usage + b"\n\n"
        return (end + DONE,)

    def _event(self, ids: Iterable[int], outcome: Finished | None) -> bytes:
        choice = token_choice(self._envelope, ids, outcome, self._details.logprobs())
        counted = b""
        if self._envelope.continuous_usage:
            counted = self._chunks.usage_member(self._scope.usage, self._gathered.completion_tokens)
        return b"data: " + self._chunks.choice(choice) + counted + b"}\n\n"
