"""The JSON of streamed chunks, all but the text serialised once a request.

In: an envelope. Out: the byte strings around each chunk's text, and the chunks at the end. A
one-token chunk then costs one ``dump_text`` and one join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .encoding import dumps
from .objects import tokens_head, usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..events import Finished, PromptUsage, TextDelta
    from .envelope import Envelope

__all__ = ("ChunkTemplate",)


class ChunkTemplate:
    """One request's chunks: ``first_head`` or ``text_head``, a JSON string, ``text_tail``, ``}``.

    With usage, ``usage_member`` stands before the last brace.

    :param reasoning_fields: the names that reasoning goes by in a delta, each once.
    """

    __slots__ = (
        "_chat",
        "_head",
        "_index",
        "_reasoning_fields",
        "first_head",
        "text_head",
        "text_tail",
    )

    def __init__(self, envelope: Envelope, reasoning_fields: Sequence[str] = ()) -> None:
        self._reasoning_fields = reasoning_fields
        self._chat = envelope.kind == "chat"
        shared: dict[str, object] = {
            "id": envelope.id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": envelope.created,
            "model": envelope.model,
        }
        if envelope.kind == "tokens":
            shared = tokens_head(envelope)
        self._index = envelope.index
        self._head = dumps(shared)[:-1] + b',"choices":['
        choice = self._head + b'{"index":%d,' % envelope.index
        if self._chat:
            self.first_head = choice + b'"delta":{"role":"assistant","content":'
            self.text_head = choice + b'"delta":{"content":'
            self.text_tail = b'},"finish_reason":null}]'
        else:
            self.first_head = self.text_head = choice + b'"text":'
            self.text_tail = b',"logprobs":null,"finish_reason":null}]'

    def delta(self, delta: TextDelta, *, role: bool) -> bytes:
        """The chunk of reasoning, or of a fragment of a tool call, without its last brace.

        A call's first chunk has its id, type and name; all have its index.

        :param role: this is the answer's first chunk.
        """
        members = self._members(delta, role=role)
        choice = {"index": self._index, "delta": members, "finish_reason": None}
        return self._head + dumps(choice) + b"]"

    def _members(self, delta: TextDelta, *, role: bool) -> dict[str, object]:
        members: dict[str, object] = {"role": "assistant"} if role else {}
        if delta.channel == "content":
            members["content"] = delta.text
        elif delta.channel == "reasoning":
            members |= dict.fromkeys(self._reasoning_fields, delta.text)
        else:
            call: dict[str, object] = {"index": delta.call_index}
            function = {"arguments": delta.text}
            if delta.call is not None:
                call |= {"id": delta.call.id, "type": "function"}
                function = {"name": delta.call.name} | function
            members["tool_calls"] = [call | {"function": function}]
        return members

    def detailed(
        self, delta: TextDelta | None, details: Mapping[str, object], *, role: bool = False
    ) -> bytes:
        """The chunk of any delta, or of none, with ``details`` in its choice.

        :param details: ``logprobs``, ``token_ids`` and the like.
        """
        choice: dict[str, object] = {"index": self._index}
        if self._chat:
            choice["delta"] = {} if delta is None else self._members(delta, role=role)
        else:
            choice["text"] = "" if delta is None else delta.text
        choice |= {"logprobs": None, "finish_reason": None}
        choice.update(details)
        return self._head + dumps(choice) + b"]"

    def choice(self, choice: Mapping[str, object]) -> bytes:
        """The chunk of a choice that is made elsewhere, without its last brace."""
        return self._head + dumps(choice) + b"]"

    def finish(self, outcome: Finished, details: Mapping[str, object] | None = None) -> bytes:
        """The chunk with the finish reason, without its last brace.

        :param details: what is told of tokens that no other chunk has.
        """
        choice: dict[str, object] = {"index": self._index}
        if self._chat:
            choice["delta"] = {}
        else:
            choice |= {"text": "", "logprobs": None}
        choice["finish_reason"] = outcome.reason
        if outcome.stop_reason is not None:
            choice["stop_reason"] = outcome.stop_reason
        choice |= details or {}
        return self._head + dumps(choice) + b"]"

    def usage(
        self, prompt: PromptUsage, completion_tokens: int, reasoning_tokens: int = 0
    ) -> bytes:
        """The chunk that has usage and no choice."""
        member = self.usage_member(prompt, completion_tokens, reasoning_tokens)
        return self._head + b"]" + member + b"}"

    @staticmethod
    def usage_member(
        prompt: PromptUsage, completion_tokens: int, reasoning_tokens: int = 0
    ) -> bytes:
        """``,"usage":{…}``."""
        return b',"usage":' + dumps(usage(prompt, completion_tokens, reasoning_tokens))
