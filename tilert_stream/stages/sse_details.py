"""Text in, server-sent events out, for requests that ask for more than the text of one answer.

The order is that of ``sse``. What is more: each chunk says what it knows of its tokens
(``logprobs``, ``token_ids``), the first has the ``echo``, and an answer that is one of several
leaves usage, ``[DONE]`` and its failure to whoever puts them together. Apart from ``sse``, since
none of this may cost the streams that do not ask for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..events import TextDelta
from ..openai.chunks import ChunkTemplate
from ..openai.encoding import dumps
from ..openai.errors import error_body
from ..telemetry.timeline import Timeline
from .details import TokenDetails

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..events import Finished
    from ..openai.envelope import Envelope
    from ..openai.token_names import TokenNames
    from ..scope import RequestScope
    from .gathered import Gathered

__all__ = ("DONE", "DetailedSSE")

DONE = b"data: [DONE]\n\n"


class DetailedSSE:
    """The encoder of one answer.

    :param gathered: of all the request's answers.
    """

    def __init__(
        self,
        envelope: Envelope,
        scope: RequestScope,
        reasoning_fields: Sequence[str],
        names: TokenNames,
        gathered: Gathered,
        *,
        done_after_error: bool,
        timing: bool,
    ) -> None:
        self._chunks = ChunkTemplate(envelope, reasoning_fields)
        self._shows_reasoning = bool(reasoning_fields)
        self._envelope = envelope
        self._scope = scope
        self._details = TokenDetails(envelope, names, scope)
        self._gathered = gathered
        self._done_after_error = done_after_error
        self._timing = timing
        self._echo = envelope.echo
        self._role_due = envelope.kind == "chat"
        self._tokens = 0

    def feed(self, delta: TextDelta) -> Iterable[bytes]:
        """What can be told now."""
        self._tokens += len(delta.ids)
        self._gathered.completion_tokens += len(delta.ids)
        if delta.channel == "reasoning":
            self._gathered.reasoning_tokens += len(delta.ids)
        self._details.take(delta)
        if self._echo:
            echo, self._echo = self._echo, ""
            if delta.channel == "content":
                delta = replace(delta, text=echo + delta.text)
            else:
                return (self._event(TextDelta(echo)), *self._shown(delta))
        return self._shown(delta)

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        """The rest of the tokens, the finish reason and, where this is the only answer, the end."""
        if self._scope.record is not None:
            self._scope.record.completion_tokens = self._tokens
        alone = self._envelope.choices == 1
        if outcome.error is not None:
            event = b"data: " + error_body(outcome.error) + b"\n\n"
            if not alone:
                return ()
            return (event + DONE if self._done_after_error else event,)
        if outcome.reason == "cancelled":
            return ()
        end = b""
        if self._role_due or self._echo:
            end = self._event(TextDelta(self._echo), empty=True)
        details = self._details.give()
        if self._envelope.kind != "chat":
            # A chat's role has told the prompt; a completion may have had no text to tell it with.
            details |= self._details.prompt()
        end += b"data: " + self._chunks.finish(outcome, details)
        timing = b""
        if self._timing and alone:
            timing = b',"pd_timing_ms":' + dumps(Timeline.of(self._scope).milliseconds())
        if self._envelope.include_usage or not alone:
            end += self._end()
        else:
            end += timing + self._end()
        return (end + self.close(timing) if alone else end,)

    def close(self, timing: bytes = b"") -> bytes:
        """Usage, where it is asked for, and ``[DONE]``."""
        if not self._envelope.include_usage:
            return DONE
        gathered = self._gathered
        usage = self._chunks.usage(
            self._scope.usage, gathered.completion_tokens, gathered.reasoning_tokens
        )
        return b"data: " + usage[:-1] + timing + b"}\n\n" + DONE

    def _shown(self, delta: TextDelta) -> tuple[bytes, ...]:
        if delta.channel == "reasoning" and not self._shows_reasoning:
            return ()
        return (self._event(delta),) if delta.text or delta.call is not None else ()

    def _event(self, delta: TextDelta, *, empty: bool = False) -> bytes:
        details = {} if empty else self._details.give()
        prompt, top = self._details.prompt(), b""
        if prompt and self._envelope.kind == "chat":
            top = b"," + dumps(prompt)[1:-1]
        else:
            details |= prompt
        chunk = self._chunks.detailed(delta, details, role=self._role_due)
        self._role_due = False
        return b"".join((b"data: ", chunk, top, self._end()))

    def _end(self) -> bytes:
        if not self._envelope.continuous_usage:
            return b"}\n\n"
        gathered = self._gathered
        usage = self._chunks.usage_member(
            self._scope.usage, gathered.completion_tokens, gathered.reasoning_tokens
        )
        return usage + b"}\n\n"
