"""What every chunk of one answer repeats, and how the client wants it sent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from ..slot_init import slot_init

if TYPE_CHECKING:
    from ..events import GenerateRequest

__all__ = ("REASONING_FIELDS", "Endpoint", "Envelope", "OtherPrompt")

Endpoint: TypeAlias = Literal["chat", "completion", "tokens"]

REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""DeepSeek's and SGLang's name for reasoning, and vLLM's. OpenAI's API has none."""


class OtherPrompt(NamedTuple):
    """One more prompt of a completion: all but the prompt is as with the first."""

    request: GenerateRequest
    echo: str


@slot_init
@dataclass(frozen=True, slots=True)
class Envelope:
    """Made once a request: one id, one ``created`` and one model name on every chunk of it."""

    request_id: str
    """``GenerateRequest.id``; of a request for token ids the client's own, where it gave one."""
    kind: Endpoint
    model: str
    """The name that the client used."""
    stream: bool = False
    include_usage: bool = False
    """``stream_options.include_usage``: usage in a chunk of its own, before ``[DONE]``."""
    continuous_usage: bool = False
    """``stream_options.continuous_usage_stats``: usage on every chunk."""
    include_reasoning: bool = True
    """``include_reasoning``: False leaves reasoning out of the answer; it is counted."""
    index: int = 0
    """Which of the request's answers this is."""
    choices: int = 1
    """How many there are: ``n`` for each prompt."""
    others: tuple[OtherPrompt, ...] = ()
    """Of a completion with several prompts, those behind the first."""
    logprobs: bool = False
    """Whether each token's log-probability is told."""
    prompt_logprobs: int | None = None
    """How many tokens are told beside each of the prompt's; None: nothing is told of them."""
    echo_logprobs: bool = False
    """Whether ``logprobs`` begin with the prompt's, which stands before the answer."""
    token_ids: bool = False
    """``return_token_ids``: ids beside the text."""
    tokens_as_ids: bool = False
    """``return_tokens_as_token_ids``: in ``logprobs`` tokens are ``token_id:N``."""
    echo: str = ""
    """What stands before the answer: the prompt, where ``echo`` asks for it."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""

    @property
    def detailed(self) -> bool:
        """Whether more is told than the text of one answer."""
        return (
            self.logprobs
            or self.token_ids
            or bool(self.echo)
            or self.choices > 1
            or self.prompt_logprobs is not None
        )

    @property
    def id(self) -> str:
        """The answer's id: ``chatcmpl-…``, ``cmpl-…``, or of token ids the bare one."""
        return _PREFIXES[self.kind] + self.request_id


_PREFIXES: Final[dict[Endpoint, str]] = {"chat": "chatcmpl-", "completion": "cmpl-", "tokens": ""}
