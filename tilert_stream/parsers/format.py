"""A format of answers as an output parser: its name, its reader, and how it is recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tilert_stream.events import OutputFormat

    from .abc import OutputReader
    from .sections import SectionReader

__all__ = ("FormatParser",)


class FormatParser:
    """Reasoning in ``<think>``, and what ``reader`` adds.

    :param writes: whether a chat template certainly writes this format.
    """

    def __init__(
        self, name: str, reader: type[SectionReader], writes: Callable[[str], bool]
    ) -> None:
        self.name = name
        self.tools = bool(reader.CALLS.begin)
        self.markers: Sequence[str] = reader.markers()
        self._reader = reader
        self._writes = writes

    def writes(self, template: str) -> bool:
        """Whether the chat template ``template`` writes this format."""
        return self._writes(template)

    def open(self, output: OutputFormat) -> OutputReader:
        """A reader for one answer."""
        return self._reader(output)
