"""What is told of an answer's tokens beside its text: log-probabilities and ids.

In: the deltas of one answer. Out: members of a choice, for the tokens since they were asked for
last, so that a token without text is told with the next one that has some, or at the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import EngineFault
from ..openai.logprobs import (
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
    text_offsets,
)

if TYPE_CHECKING:
    from ..events import TextDelta, TokenLogprob
    from ..openai.envelope import Envelope
    from ..openai.token_names import TokenNames
    from ..scope import RequestScope

__all__ = ("TokenDetails",)


class TokenDetails:
    """One answer's.

    :param scope: of its request, whose prompt is told once.
    """

    def __init__(self, envelope: Envelope, names: TokenNames, scope: RequestScope) -> None:
        self._envelope = envelope
        self._names = names
        self._scope = scope
        self._prompt_due = envelope.token_ids or envelope.prompt_logprobs is not None
        self._echo_due = envelope.echo_logprobs
        self._ids: list[int] = []
        self._told: list[TokenLogprob] = []
        self._offsets: list[int] = []
        self._received = len(envelope.echo)
        """Characters of the answer, and of what stands before it."""
        self._end = self._received
        """Where the last token's text ends in it."""

    def take(self, delta: TextDelta) -> None:
        """Note a delta's tokens.

        :raises ~tilert_stream.errors.EngineFault: log-probabilities are asked for, and the engine
            has told none.
        """
        self._ids += delta.ids
        for end in delta.ends:
            self._offsets.append(self._end)
            self._end = self._received + end
        self._received += len(delta.text)
        if self._envelope.logprobs and delta.ids:
            if delta.logprobs is None or len(delta.logprobs) != len(delta.ids):
                raise EngineFault(
                    f"the engine told {len(delta.logprobs or ())} log-probabilities of"
                    f" {len(delta.ids)} tokens; leave out logprobs"
                )
            self._told += delta.logprobs

    def give(self) -> dict[str, object]:
        """``logprobs`` and ``token_ids`` of the tokens since the last call."""
        members: dict[str, object] = {}
        if self._envelope.logprobs:
            members["logprobs"] = self.logprobs()
        if self._envelope.token_ids:
            members["token_ids"] = self._ids
        self._ids = []
        return members

    def logprobs(self) -> dict[str, object] | None:
        """Of the tokens since the last call; None where there are none."""
        told, offsets = self._told, self._offsets
        self._told, self._offsets = [], []
        envelope = self._envelope
        if envelope.kind == "completion":
            return self._completion(told, offsets)
        if not told:
            return None
        as_ids = envelope.tokens_as_ids or envelope.kind == "tokens"
        return chat_logprobs(told, self._names, as_ids=as_ids)

    def _completion(self, told: list[TokenLogprob], offsets: list[int]) -> dict[str, object] | None:
        first: int | None = None
        if self._echo_due:
            self._echo_due = False
            request = self._scope.request
            first = request.prompt_ids[0]
            count = request.sampling.logprobs
            told = [replace(each, top=each.top[:count]) for each in self._prompt_told()] + told
            echoed = text_offsets(request.prompt_ids, self._envelope.echo, self._names)
            offsets = echoed + offsets
        elif not told:
            return None
        as_ids = self._envelope.tokens_as_ids
        return completion_logprobs(told, self._names, as_ids=as_ids, offsets=offsets, first=first)

    def _prompt_told(self) -> tuple[TokenLogprob, ...]:
        told, tokens = self._scope.usage.logprobs, len(self._scope.request.prompt_ids)
        if told is None or len(told) != tokens - 1:
            raise EngineFault(
                f"prefill told {len(told or ())} log-probabilities of a prompt of {tokens} tokens;"
                " leave out echo with logprobs, or prompt_logprobs"
            )
        return told

    def prompt(self) -> dict[str, object]:
        """``prompt_token_ids`` and ``prompt_logprobs``, the first time, where they are told."""
        members: dict[str, object] = {}
        if self._prompt_due:
            self._prompt_due = False
            if self._envelope.token_ids:
                members["prompt_token_ids"] = self._scope.request.prompt_ids
            if self._envelope.prompt_logprobs is not None:
                members["prompt_logprobs"] = prompt_logprobs(
                    self._prompt_told(), self._names, self._envelope.prompt_logprobs
                )
        return members
