"""What is told of an answer's tokens beside its text: log-probabilities and ids.

In: the deltas of one answer. Out: members of a choice, for the tokens since they were asked for
last, so that a token without text is told with the next one that has some, or at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import EngineFault
from ..openai.logprobs import chat_logprobs, completion_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..events import TextDelta, TokenLogprob
    from ..openai.envelope import Envelope
    from ..openai.token_names import TokenNames

__all__ = ("TokenDetails",)


class TokenDetails:
    """One answer's.

    :param prompt_ids: told once, where ids are.
    """

    def __init__(self, envelope: Envelope, names: TokenNames, prompt_ids: Sequence[int]) -> None:
        self._envelope = envelope
        self._names = names
        self._prompt_ids: Sequence[int] | None = prompt_ids if envelope.token_ids else None
        self._ids: list[int] = []
        self._told: list[TokenLogprob] = []
        self._offsets: list[int] = []
        self._received = 0
        """Characters of the answer."""
        self._end = 0
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
        envelope, as_ids = self._envelope, self._envelope.tokens_as_ids
        if envelope.logprobs:
            if envelope.kind == "chat":
                told: object = chat_logprobs(self._told, self._names, as_ids=as_ids)
            else:
                told = completion_logprobs(
                    self._told, self._names, as_ids=as_ids, offsets=self._offsets
                )
            members["logprobs"] = told if self._told else None
        if envelope.token_ids:
            members["token_ids"] = self._ids
        self._ids, self._told, self._offsets = [], [], []
        return members

    def prompt(self) -> dict[str, object]:
        """``prompt_token_ids``, the first time, where ids are told."""
        ids, self._prompt_ids = self._prompt_ids, None
        return {} if ids is None else {"prompt_token_ids": ids}
