"""Text in, one JSON response at the end out.

A failed request yields nothing: nothing has been sent yet, so the failure becomes the HTTP status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..openai.encoding import dumps
from ..openai.envelope import REASONING_FIELDS
from ..openai.objects import choice_object, response, tool_call
from ..telemetry.timeline import Timeline
from .details import TokenDetails

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..abc import Transform
    from ..events import Finished, TextDelta, ToolCallStart
    from ..openai.envelope import Envelope
    from ..openai.token_names import TokenNames
    from ..scope import RequestScope
    from .gathered import Gathered

__all__ = ("EncodeJSON",)


class EncodeJSON:
    """Makes the encoder of one request that is not streamed.

    :param reasoning_fields: the names that reasoning goes by in the message, each once.
    :param timing: say where the time went, as ``pd_timing_ms``.
    :param names: spells tokens, for an envelope that wants more than text.
    :param gathered: takes the answer where it is one of several, and nothing is sent.
    """

    stage_name = "plain"

    def __init__(
        self,
        envelope: Envelope,
        *,
        reasoning_fields: Sequence[str] = REASONING_FIELDS,
        timing: bool = False,
        names: TokenNames | None = None,
        gathered: Gathered | None = None,
    ) -> None:
        self._envelope = envelope
        self._reasoning_fields = reasoning_fields if envelope.include_reasoning else ()
        self._timing = timing
        self._names = names
        self._gathered = gathered

    def __call__(self, scope: RequestScope) -> Transform[TextDelta, bytes]:
        """The encoder for ``scope``'s request."""
        envelope, names = self._envelope, self._names
        details = None
        if envelope.detailed and names is not None:
            details = TokenDetails(envelope, names, scope)
        return _JSONEncoder(
            envelope,
            scope,
            self._reasoning_fields,
            details,
            self._gathered,
            timing=self._timing,
        )


class _Call(NamedTuple):
    start: ToolCallStart
    arguments: list[str]


class _JSONEncoder:
    __slots__ = (
        "_calls",
        "_details",
        "_envelope",
        "_gathered",
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
        details: TokenDetails | None,
        gathered: Gathered | None,
        *,
        timing: bool,
    ) -> None:
        self._envelope = envelope
        self._details = details
        self._gathered = gathered
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
        if self._details is not None:
            self._details.take(delta)
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
        choice = self._choice(outcome)
        top: dict[str, object] = {}
        if self._details is not None:
            choice |= self._details.give()
            (top if self._envelope.kind == "chat" else choice).update(self._details.prompt())
        gathered = self._gathered
        if gathered is not None:
            gathered.choices[self._envelope.index] = choice
            gathered.completion_tokens += self._tokens
            gathered.reasoning_tokens += self._reasoning_tokens
            gathered.top |= top
            return ()
        whole = top | response(
            self._envelope, (choice,), self._scope.usage, self._tokens, self._reasoning_tokens
        )
        if self._timing:
            whole["pd_timing_ms"] = Timeline.of(self._scope).milliseconds()
        return (dumps(whole),)

    def _choice(self, outcome: Finished) -> dict[str, object]:
        reasoning = "".join(self._reasoning)
        return choice_object(
            self._envelope,
            self._envelope.echo + "".join(self._pieces),
            outcome,
            reasoning=dict.fromkeys(self._reasoning_fields, reasoning) if reasoning else None,
            tool_calls=[
                tool_call(call.start.id, call.start.name, "".join(call.arguments))
                for call in self._calls
            ],
        )
