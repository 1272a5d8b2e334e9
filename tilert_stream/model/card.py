"""What the front of the server knows of the served model: enough to read a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..errors import ConfigError
from ..events import PLAIN_CAPABILITIES, Capability, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..events import Tool
    from .chat_template import ChatTemplate

__all__ = ("ModelCard", "TextCodec")


class TextCodec(Protocol):
    """Of a tokenizer, what a prompt goes through; and back, where a client asks for that."""

    @property
    def tokens(self) -> Mapping[int, str]:
        """Id → token, spelled as in the vocabulary."""
        ...

    def encode(self, text: str, /, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of ``text``; with ``add_special_tokens``, what the model expects around it."""
        ...

    def decode(self, ids: Iterable[int], /, *, skip_special_tokens: bool) -> str:
        """The text of ``ids``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One served model."""

    names: tuple[str, ...]
    """The names it answers to. The first is canonical: requests that name none get it."""
    tokenizer: TextCodec
    max_seq_len: int
    """Tokens of prompt and answer together."""
    vocab_size: int
    """Ids from a client must be below it."""
    created: int
    """Seconds since 1970."""
    chat_template: ChatTemplate | None = None
    """None: a base model; chat completions are refused."""
    eos_ids: frozenset[int] = frozenset()
    default_sampling: Sampling = field(default_factory=Sampling)
    """For what a request leaves out, as the model's ``generation_config.json`` says."""
    owned_by: str = "tilert_stream"
    capabilities: frozenset[Capability] = PLAIN_CAPABILITIES
    """A request that needs another is refused before any work."""
    call_grammar: Callable[[Sequence[Tool], bool], str | None] | None = None
    """How calls of some tools, one or (True) several, must be written to be read out of an answer;
    None: no call can be forced."""
    check_grammar: Callable[[str, str], None] | None = None
    """Compiles a grammar, and raises ``InvalidRequest`` for one that cannot be followed, naming the
    field it came from; blocks. None: that is found out by whoever holds the answer to it."""

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError("a model card has no name; give names=(…,) at least one")
