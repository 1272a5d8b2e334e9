"""Text in, one JSON response at the end out.

A failed request yields nothing: nothing has been sent yet, so the failure becomes the HTTP status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..openai.encoding import dumps
from ..openai.envelope import REASONING_FIELDS
from ..openai.objects import response, tool_call
from ..telemetry.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..abc import Transform
    from ..events import Finished, TextDelta, ToolCallStart
    from ..openai.envelope import Envelope
    from ..scope import RequestScope

__all__ = ("EncodeJSON",)


class EncodeJSON:
    """Makes the encoder of one request that is not streamed.

    :param reasoning_fields: the names that reasoning goes by in the message, each once.
    :param timing: say where the time went, as ``pd_timing_ms``.
    """

    stage_name = "plain"

    def __init__(
        self,
        envelope: Envelope,
        *,
        reasoning_fields: Sequence[str] = REASONING_FIELDS,
        timing: bool = False,
    ) -> None:
        self._envelope = envelope
        self._reasoning_fields = reasoning_fields if envelope.include_reasoning else ()
        self._timing = timing

    def __call__(self, scope: RequestScope) -> Transform[TextDelta, bytes]:
        """The encoder for ``scope``'s request."""
        return _JSONEncoder(self._envelope, scope, self._reasoning_fields, timing=self._timing)


class _Call(NamedTuple):
    start: ToolCallStart
    arguments: list[str]


class _JSONEncoder:
    __slots__ = (
        "_calls",
        "_envelope",
        "_pieces",
        "_reasoning",
        "_reasoning_fields",
        "_reasoning_tokens",
        "_scope",
        "_timing",
        "_tokens",
    )

    def __init__(
        self,
        envelope: Envelope,
        scope: RequestScope,
        reasoning_fields: Sequence[str],
        *,
        timing: bool,
    ) -> None:
        self._envelope = envelope
        self._scope = scope
        self._reasoning_fields = reasoning_fields
        self._timing = timing
        self._pieces: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._tokens = 0
        self._reasoning_tokens = 0

    def feed(self, delta: TextDelta) -> Iterable[bytes]:
        self._tokens += len(delta.ids)
        if delta.channel == "content":
            self._pieces.append(delta.text)
        elif delta.channel == "reasoning":
            self._reasoning.append(delta.text)
            self._reasoning_tokens += len(delta.ids)
        else:
            if delta.call is not None:
                self._calls.append(_Call(delta.call, []))
            if delta.text:
                self._calls[delta.call_index].arguments.append(delta.text)
        return ()

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        if self._scope.record is not None:
            self._scope.record.completion_tokens = self._tokens
        if outcome.error is not None or outcome.reason == "cancelled":
            return ()
        reasoning = "".join(self._reasoning)
        whole = response(
            self._envelope,
            "".join(self._pieces),
            outcome,
            self._scope.usage,
            self._tokens,
            reasoning=dict.fromkeys(self._reasoning_fields, reasoning) if reasoning else None,
            tool_calls=[
                tool_call(call.start.id, call.start.name, "".join(call.arguments))
                for call in self._calls
            ],
            reasoning_tokens=self._reasoning_tokens,
        )
        if self._timing:
            whole["pd_timing_ms"] = Timeline.of(self._scope).milliseconds()
        return (dumps(whole),)
