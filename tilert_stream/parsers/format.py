"""A format of answers as an output parser: its name, its reader, and how it is recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tilert_stream.events import OutputFormat, Tool

    from .abc import OutputReader
    from .sections import SectionReader

__all__ = ("FormatParser",)


class FormatParser:
    """Reasoning in ``<think>``, and what ``reader`` adds.

    :param writes: whether a chat template certainly writes this format.
    :param rule: one tool's call, as the right side of a rule in llguidance's variant of Lark.
    """

    def __init__(
        self,
        name: str,
        reader: type[SectionReader],
        writes: Callable[[str], bool],
        rule: Callable[[Tool], str] | None = None,
    ) -> None:
        self.name = name
        self.tools = bool(reader.CALLS.begin)
        self.markers: Sequence[str] = reader.markers()
        self._reader = reader
        self._writes = writes
        self._rule = rule

    def writes(self, template: str) -> bool:
        """Whether the chat template ``template`` writes this format."""
        return self._writes(template)

    def open(self, output: OutputFormat) -> OutputReader:
        """A reader for one answer."""
        return self._reader(output)

    def call_grammar(self, tools: Sequence[Tool], *, several: bool) -> str | None:
        """Calls of ``tools`` and nothing else; None: a call of this format cannot be forced."""
        if self._rule is None:
            return None
        names = [f"tool_{index}" for index in range(len(tools))]
        rules = [f"{name}: {self._rule(tool)}" for name, tool in zip(names, tools, strict=True)]
        start = r'start: call ("\n" call)*' if several else "start: call"
        return "\n".join((start, "call: " + " | ".join(names), *rules))
