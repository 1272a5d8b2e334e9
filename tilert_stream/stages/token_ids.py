"""Text and its token ids in, the answer of ``/inference/v1/generate`` out: the ids.

Streamed, each wake's ids are one event; the end, usage (where asked for) and ``[DONE]`` are one
write, and a failure is an event without ``[DONE]``, all as in ``sse``. The pipeline's text goes
unread but for stop strings, which end an answer here too: its ids go up to the token that completes
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..openai.encoding import dumps
from ..openai.errors import error_body
from ..openai.objects import usage
from .sse_details import DONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..abc import Transform
    from ..events import Finished, TextDelta
    from ..openai.envelope import Envelope
    from ..scope import RequestScope

__all__ = ("EncodeTokenIds",)


class EncodeTokenIds:
    """Makes the encoder of one request for tokens.

    :param done_after_error: send ``[DONE]`` after an error too.
    """

    stage_name = "token_ids"

    def __init__(self, envelope: Envelope, *, done_after_error: bool = False) -> None:
        self._envelope = envelope
        self._done_after_error = done_after_error

    def __call__(self, scope: RequestScope) -> Transform[TextDelta, bytes]:
        """The encoder for ``scope``'s request."""
        if self._envelope.stream:
            return _Streamed(self._envelope, scope, done_after_error=self._done_after_error)
        return _Whole(self._envelope, scope)


def _choice(ids: Iterable[int], outcome: Finished | None) -> dict[str, object]:
    choice: dict[str, object] = {
        "index": 0,
        "token_ids": list(ids),
        "logprobs": None,
        "finish_reason": None if outcome is None else outcome.reason,
    }
    if outcome is not None and outcome.stop_reason is not None:
        choice["stop_reason"] = outcome.stop_reason
    return choice


class _Whole:
    __slots__ = ("_envelope", "_ids", "_scope")

    def __init__(self, envelope: Envelope, scope: RequestScope) -> None:
        self._envelope = envelope
        self._scope = scope
        self._ids: list[int] = []

    def feed(self, delta: TextDelta) -> Iterable[bytes]:
        self._ids += delta.ids
        return ()

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        if self._scope.record is not None:
            self._scope.record.completion_tokens = len(self._ids)
        if outcome.error is not None or outcome.reason == "cancelled":
            return ()
        whole = {
            "request_id": self._envelope.id,
            "output_mode": "tokens",
            "model": self._envelope.model,
            "created": self._envelope.created,
            "choices": [_choice(self._ids, outcome)],
            "usage": usage(self._scope.usage, len(self._ids)),
        }
        return (dumps(whole),)


class _Streamed:
    __slots__ = ("_done_after_error", "_envelope", "_scope", "_tokens")

    def __init__(self, envelope: Envelope, scope: RequestScope, *, done_after_error: bool) -> None:
        self._envelope = envelope
        self._scope = scope
        self._done_after_error = done_after_error
        self._tokens = 0

    def feed(self, delta: TextDelta) -> Iterable[bytes]:
        if not delta.ids:
            return ()
        self._tokens += len(delta.ids)
        return (self._event([_choice(delta.ids, None)], counted=self._envelope.continuous_usage),)

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        if self._scope.record is not None:
            self._scope.record.completion_tokens = self._tokens
        if outcome.error is not None:
            event = b"data: " + error_body(outcome.error) + b"\n\n"
            return (event + DONE if self._done_after_error else event,)
        if outcome.reason == "cancelled":
            return ()
        end = self._event([_choice((), outcome)], counted=self._envelope.continuous_usage)
        if self._envelope.include_usage:
            end += self._event([], counted=True)
        return (end + DONE,)

    def _event(self, choices: list[dict[str, object]], *, counted: bool) -> bytes:
        chunk: dict[str, object] = {
            "request_id": self._envelope.id,
            "output_mode": "tokens",
            "choices": choices,
        }
        if counted:
            chunk["usage"] = usage(self._scope.usage, self._tokens)
        return b"data: " + dumps(chunk) + b"\n\n"
