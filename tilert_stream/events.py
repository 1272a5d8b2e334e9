"""The messages of one request, in the order they travel.

``GenerateRequest`` → ``Reserved`` → ``Prefilled`` → ``KVReady`` → ``TokenBatch`` … →
``TextDelta`` … → ``Finished``

All are frozen: a message that crossed a thread is nobody's to change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from .sampling import PLAIN_CAPABILITIES, Capability, Sampling
from .slot_init import slot_init

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .errors import TilertStreamError

__all__ = (
    "PLAIN_CAPABILITIES",
    "Capability",
    "Channel",
    "FinishReason",
    "Finished",
    "GenerateRequest",
    "Harvest",
    "KVReady",
    "Limits",
    "OutputFormat",
    "Prefilled",
    "PromptUsage",
    "Reserved",
    "Sampling",
    "TextDelta",
    "TokenBatch",
    "TokenLogprob",
    "Tool",
    "ToolCallStart",
)

FinishReason: TypeAlias = Literal[
    "stop", "length", "tool_calls", "content_filter", "cancelled", "error"
]


Channel: TypeAlias = Literal["content", "reasoning", "tool_call"]
"""What a piece of text is to its reader: the answer, the thinking before it, or the arguments of a
call."""


@slot_init
@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a token stream: the last message of every request, success or not.

    ``error`` is set exactly when ``reason`` is ``"error"`` or ``"cancelled"``.
    """

    reason: FinishReason
    stop_reason: int | str | None = None
    """The stop string or the stop token id that ended it; None for the model's own EOS."""
    error: TilertStreamError | None = None
    account: Mapping[str, object] | None = field(default=None, compare=False, repr=False)
    """What the engine has counted, under TileRT's names: ``forwards``, ``mtp_accept_mean`` …"""

    @classmethod
    def failed(cls, error: TilertStreamError) -> Finished:
        """The end of a request that failed with ``error``."""
        return cls("error", error=error)


@slot_init
@dataclass(frozen=True, slots=True)
class Limits:
    """Where a token sequence ends: the one rule that hand-off, engines and writers share.

    The first token, which prefill makes, counts like any other.
    """

    max_tokens: int
    min_tokens: int = 0
    """Until so many tokens exist, no stop token may be drawn (the engine masks them)."""
    eos_ids: frozenset[int] = frozenset()
    """The model's own stop tokens; empty with ``ignore_eos``."""
    stop_ids: frozenset[int] = frozenset()
    """The request's ``stop_token_ids``."""

    def stop_mask(self, emitted: int) -> frozenset[int]:
        """The ids that must not be drawn as token number ``emitted`` (counted from 0)."""
        return self.eos_ids | self.stop_ids if emitted < self.min_tokens else frozenset()

    def cut(self, ids: Sequence[int], emitted: int) -> tuple[int, Finished | None]:
        """Where ``ids``, coming after ``emitted`` earlier tokens, end the request.

        Returns how many of ``ids`` belong to the answer, and the end if it is among them. The
        stop token itself is counted, its text is never emitted. A stop token that comes before
        ``min_tokens`` (an engine that cannot mask) does not end the request.
        """
        room = self.max_tokens - emitted
        if self.stop_ids.isdisjoint(ids) and self.eos_ids.isdisjoint(ids):
            return (room, Finished("length")) if len(ids) >= room else (len(ids), None)
        for index, token in enumerate(ids[:room]):
            if emitted + index + 1 >= self.min_tokens:
                if token in self.stop_ids:
                    return index + 1, Finished("stop", stop_reason=token)
                if token in self.eos_ids:
                    return index + 1, Finished("stop")
        if len(ids) >= room:
            return room, Finished("length")
        return len(ids), None


@slot_init
@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict[str, object])
    """JSON schema of its arguments, which are an object; empty: anything."""
    param: str = ""
    """The request's field that has them, such as ``tools[0].function.parameters``."""


@slot_init
@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What an output parser must know of the request to read its answer."""

    prompt_tail: str = ""
    """The end of the prompt's text: it says whether the answer begins inside of reasoning."""
    tools: tuple[Tool, ...] = ()
    """None: what looks like a call stays text."""
    parallel_calls: bool = True
    """False: the answer ends before a second call."""
    named_call: bool = False
    """The client has named the function that is called: the end is a plain ``stop``, as OpenAI has
    it."""


@slot_init
@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What is to be generated, free of any wire format."""

    id: str
    """Unique in this process and its cluster: hex digits, no dash."""
    prompt_ids: tuple[int, ...]
    limits: Limits
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    """Stop strings; none is empty."""
    include_stop: bool = False
    """Whether the stop string stays in the text."""
    skip_special_tokens: bool = True
    output: OutputFormat | None = None
    """None: the answer is text and nothing else."""


@slot_init
@dataclass(frozen=True, slots=True)
class Reserved:
    """A decode slot is ours: from here on the request is accepted."""

    slot: int
    grant: object = None
    """The decode side's own handle on it."""


@slot_init
@dataclass(frozen=True, slots=True)
class PromptUsage:
    """What prefill says of the prompt, in tokens."""

    prompt_tokens: int
    cached_tokens: int | None = None
    """Tokens served from a prefix cache; None where prefill does not report it."""
    logprobs: tuple[TokenLogprob, ...] | None = field(default=None, repr=False)
    """Of each of its tokens but the first, where they were asked for."""


@slot_init
@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (natural) of a drawn token, and of the most likely ones beside it."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@slot_init
@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids that came out of one chain (or the first token, out of prefill)."""

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One an id, or None where they were not asked for."""
    ends_with_stop: bool = False
    """The last id is the stop token that ended the request: counted, its text never emitted."""


@slot_init
@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt has been computed: the first token exists, the KV cache is on its way."""

    reserved: Reserved
    first: TokenBatch
    """Exactly one id."""
    kv: object
    """The KV cache as prefill hands it over; only the decode side looks inside."""
    usage: PromptUsage


@slot_init
@dataclass(frozen=True, slots=True)
class KVReady:
    """The KV cache is in the decode slot: ``sequence`` can be advanced."""

    sequence: object
    """The decode side's own handle."""


@slot_init
@dataclass(frozen=True, slots=True)
class Harvest:
    """What one chain of an engine yields: ids, and the end if they contain it."""

    batch: TokenBatch
    finished: Finished | None = None


@slot_init
@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins: its arguments follow, as fragments of JSON text."""

    id: str
    """Unique: the client sends the result under it."""
    name: str


@slot_init
@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text, and the tokens it came from.

    ``ends[i]`` is the offset in ``text`` (in characters) at which token ``i``'s text ends; the
    offsets never fall. A character that several tokens spell belongs to the one that completes
    it. A token whose text a later stage holds back travels with the last of its text, so that
    counts and log-probabilities stay beside the text they belong to.
    """

    text: str
    ids: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    channel: Channel = "content"
    """An output parser says it; text that none has read is content."""
    call_index: int = 0
    """In the channel ``tool_call``: which of the answer's calls ``text`` belongs to, from 0."""
    call: ToolCallStart | None = None
    """On the first delta of a call only."""
