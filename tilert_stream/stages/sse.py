"""Text in, server-sent events of OpenAI's chunks out.

The wire is ``data: {json}``, a blank line, and at the end ``data: [DONE]``: nothing else, since
comments, ``id:`` and ``event:`` lines each break some client. The order of a stream:

1. The first text, reasoning or call brings the role along, as one event. A token without text
   sends nothing; it is counted. A stream that ends without any of them sends the role then.
2. Finish, usage (where asked for) and ``[DONE]`` are one item, hence one write.
3. A failed stream ends with ``data: {"error": …}``: no finish reason, no usage, no ``[DONE]``;
   whoever writes it cuts the connection then. A cancelled one has no reader and gets nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..openai.chunks import ChunkTemplate
from ..openai.encoding import dump_text, dumps
from ..openai.envelope import REASONING_FIELDS
from ..openai.errors import error_body
from ..telemetry.timeline import Timeline
from .gathered import Gathered
from .sse_details import DONE, DetailedSSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..abc import Transform
    from ..events import Finished, TextDelta
    from ..openai.envelope import Envelope
    from ..openai.token_names import TokenNames
    from ..scope import RequestScope

__all__ = ("EncodeSSE",)


class EncodeSSE:
    """Makes the encoder of one streamed request.

    :param done_after_error: send ``[DONE]`` after an error too, as several servers do. Clients
        that count a stream as good when they see ``[DONE]`` then take the failure for a success.
    :param reasoning_fields: the names that reasoning goes by in a delta, each once.
    :param names: spells tokens, for an envelope that wants more than text.
    :param gathered: what the request's answers come to together, where there are several.
    :param timing: say where the time went, as ``pd_timing_ms`` on the usage chunk, or on the one
        with the finish reason where usage is not asked for.
    """

    stage_name = "sse"

    def __init__(
        self,
        envelope: Envelope,
        *,
        done_after_error: bool = False,
        reasoning_fields: Sequence[str] = REASONING_FIELDS,
        timing: bool = False,
        names: TokenNames | None = None,
        gathered: Gathered | None = None,
    ) -> None:
        self._envelope = envelope
        self._done_after_error = done_after_error
        self._reasoning_fields = reasoning_fields if envelope.include_reasoning else ()
        self._timing = timing
        self._names = names
        self._gathered = gathered

    def __call__(self, scope: RequestScope) -> Transform[TextDelta, bytes]:
        """The encoder for ``scope``'s request."""
        if self._envelope.detailed and self._names is not None:
            return DetailedSSE(
                self._envelope,
                scope,
                self._reasoning_fields,
                self._names,
                self._gathered or Gathered(),
                done_after_error=self._done_after_error,
                timing=self._timing,
            )
        return _SSEEncoder(
            self._envelope,
            scope,
            self._reasoning_fields,
            done_after_error=self._done_after_error,
            timing=self._timing,
        )


class _SSEEncoder:
    __slots__ = (
        "_chunks",
        "_continuous",
        "_done_after_error",
        "_head",
        "_include_usage",
        "_reasoning_tokens",
        "_role_due",
        "_scope",
        "_shows_reasoning",
        "_tail",
        "_text_head",
        "_timing",
        "_tokens",
    )

    def __init__(
        self,
        envelope: Envelope,
        scope: RequestScope,
        reasoning_fields: Sequence[str],
        *,
        done_after_error: bool,
        timing: bool,
    ) -> None:
        self._chunks = ChunkTemplate(envelope, reasoning_fields)
        self._shows_reasoning = bool(reasoning_fields)
        self._scope = scope
        self._include_usage = envelope.include_usage
        self._continuous = envelope.continuous_usage
        self._done_after_error = done_after_error
        self._timing = timing
        self._head = b"data: " + self._chunks.first_head
        self._text_head = b"data: " + self._chunks.text_head
        self._tail = self._chunks.text_tail + b"}\n\n"
        self._role_due = envelope.kind == "chat"
        self._tokens = 0
        self._reasoning_tokens = 0

    def feed(self, delta: TextDelta) -> Iterable[bytes]:
        self._tokens += len(delta.ids)
        if delta.channel == "content":
            return (self._event(delta.text),) if delta.text else ()
        if delta.channel == "reasoning":
            self._reasoning_tokens += len(delta.ids)
            shown = bool(delta.text) and self._shows_reasoning
        else:
            shown = bool(delta.text) or delta.call is not None
        return (self._channel_event(delta),) if shown else ()

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        if self._scope.record is not None:
            self._scope.record.completion_tokens = self._tokens
        if outcome.error is not None:
            event = b"data: " + error_body(outcome.error) + b"\n\n"
            return (event + DONE if self._done_after_error else event,)
        if outcome.reason == "cancelled":
            return ()
        timing = self._timing_member() if self._timing else b""
        end = b"data: " + self._chunks.finish(outcome)
        end += self._end() if self._include_usage else timing + self._end()
        if self._role_due:
            end = self._event("") + end
        if self._include_usage:
            usage = self._chunks.usage(self._scope.usage, self._tokens, self._reasoning_tokens)
            end += b"data: " + usage[:-1] + timing + b"}\n\n"
        return (end + DONE,)

    def _timing_member(self) -> bytes:
        return b',"pd_timing_ms":' + dumps(Timeline.of(self._scope).milliseconds())

    def _event(self, text: str) -> bytes:
        head, self._head = self._head, self._text_head
        self._role_due = False
        tail = self._chunks.text_tail + self._end() if self._continuous else self._tail
        return b"".join((head, dump_text(text), tail))

    def _channel_event(self, delta: TextDelta) -> bytes:
        chunk = self._chunks.delta(delta, role=self._role_due)
        self._role_due = False
        self._head = self._text_head
        return b"".join((b"data: ", chunk, self._end()))

    def _end(self) -> bytes:
        if not self._continuous:
            return b"}\n\n"
        usage = self._chunks.usage_member(self._scope.usage, self._tokens, self._reasoning_tokens)
        return usage + b"}\n\n"
