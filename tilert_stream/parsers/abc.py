"""What an output parser is. Text in, the same text out in channels; tokens are not its business.

A parser of your own is an object that fits ``OutputParser``, offered as an entry point of the group
``tilert_stream.parsers`` and chosen by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_stream.events import Channel, OutputFormat, Tool, ToolCallStart

__all__ = ("CallWriter", "OutputParser", "OutputReader", "Piece")


class Piece(NamedTuple):
    """Text of one channel.

    ``begin`` and ``end`` say where it came from, in characters from the start of the answer: what
    lies between, markers included, is dealt with. Pieces come in order and never overlap.
    """

    channel: Channel
    text: str
    begin: int
    end: int
    call_index: int = 0
    call: ToolCallStart | None = None


class OutputReader(Protocol):
    """Reads one answer. What it raises ends only its own work: the rest is then plain text."""

    @property
    def called(self) -> bool:
        """Whether there are calls, and each has valid arguments and is complete."""
        ...

    @property
    def over(self) -> bool:
        """Whether the answer ends here, though the model would go on: a second call, say."""
        ...

    def feed(self, text: str, /) -> Sequence[Piece]:
        """What is certain after ``text``, which is never empty.

        The pieces of an answer, joined by channel and call, do not depend on how it was cut.
        """
        ...

    def finish(self) -> Sequence[Piece]:
        """What was held back. Called once, at the end."""
        ...


class OutputParser(Protocol):
    """One format of answers. Made once a model; requests share it."""

    @property
    def name(self) -> str:
        """What it is chosen by."""
        ...

    @property
    def tools(self) -> bool:
        """Whether it reads calls of tools."""
        ...

    @property
    def markers(self) -> Sequence[str]:
        """Texts that it must see, though the tokenizer may take them for special tokens."""
        ...

    def writes(self, template: str, /) -> bool:
        """Whether a chat template certainly writes this format, by the template's source."""
        ...

    def open(self, output: OutputFormat, /) -> OutputReader:
        """A reader for one answer."""
        ...


@runtime_checkable
class CallWriter(Protocol):
    """A parser that can also say how a model must write calls, so that one can be forced."""

    def call_grammar(self, tools: Sequence[Tool], /, *, several: bool) -> str | None:
        """Calls of ``tools`` and nothing else, in llguidance's variant of Lark.

        None: this format has no such grammar.

        :param several: whether one call may follow another.
        """
        ...
