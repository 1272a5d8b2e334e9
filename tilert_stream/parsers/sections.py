"""An answer in sections: reasoning, then text and calls. What all formats here have in common.

Line feeds beside a marker belong to it: chat templates write them, and strip them when they read an
answer back. Where no section can begin a marker is text, so that an answer may speak of one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from .markers import Markers
from .reader import EndOfText, Malformed, MarkerReader

if TYPE_CHECKING:
    from tilert_stream.events import OutputFormat

    from .reader import Reading

__all__ = ("LINE_FEEDS", "THINK", "THINK_END", "CallMarkers", "SectionReader")

THINK: Final = "<think>"
THINK_END: Final = "</think>"
LINE_FEEDS: Final = 2
"""Line feeds beside a marker that are the format's own: the most that a template writes."""

_REASONING_BEGINS: Final = Markers((THINK,), line_feeds=LINE_FEEDS)
_REASONING_ENDS: Final = Markers((THINK_END,), line_feeds=LINE_FEEDS)


class CallMarkers(NamedTuple):
    """What a format's calls are found by."""

    begin: tuple[str, ...] = ()
    """Each begins a call …"""
    end: tuple[str, ...] = ()
    """… and these end one."""
    around: tuple[str, ...] = ()
    """These stand around all calls, and say nothing."""
    within: tuple[str, ...] = ()
    """Further ones, which only ``read_call`` looks for."""


class SectionReader(MarkerReader):
    """Reads one answer; a format adds its calls.

    Reasoning begins where the prompt left it open, and where its marker comes before any text: at
    the start, or behind a call.
    """

    CALLS: ClassVar[CallMarkers] = CallMarkers()

    _no_calls: ClassVar[Markers] = Markers(())
    _openings: ClassVar[Markers] = Markers((THINK, THINK_END), line_feeds=LINE_FEEDS)
    _calls_begin: ClassVar[Markers] = _no_calls
    _calls_end: ClassVar[Markers] = _no_calls

    def __init_subclass__(cls) -> None:
        """Compile a format's markers, once."""
        begin = (*cls.CALLS.begin, *cls.CALLS.around)
        cls._openings = Markers((THINK, THINK_END, *begin), line_feeds=LINE_FEEDS)
        cls._calls_begin = Markers(begin, line_feeds=LINE_FEEDS)
        cls._calls_end = Markers((*cls.CALLS.end, *begin), line_feeds=LINE_FEEDS)

    def __init__(self, output: OutputFormat) -> None:
        self._output = output
        super().__init__()

    @classmethod
    def markers(cls) -> tuple[str, ...]:
        """All markers, for tokenizers that would hide some."""
        calls = cls.CALLS
        return (THINK, THINK_END, *calls.begin, *calls.end, *calls.around, *calls.within)

    def read(self) -> Reading[None]:
        """Section after section."""
        tools = bool(self._output.tools)
        openings = self._openings if tools else SectionReader._openings
        within = self._calls_begin if tools else self._no_calls
        if self._output.prompt_tail.rstrip().endswith(THINK):
            yield from self.skip("\n", LINE_FEEDS)
            # Some models write the marker though the prompt has it.
            if (yield from self.opening(_REASONING_BEGINS)) is not None:
                self.emit("reasoning", "", self.at)
            yield from self._reasoning()
        while True:
            marker = yield from self.opening(openings)
            if marker is None:
                marker = yield from self.stream(within, partial(self.emit, "content"))
            yield from self._section(marker)

    def _section(self, marker: str | None) -> Reading[None]:
        """What ``marker``, which has been read, begins."""
        while marker is not None:
            if marker == THINK:
                self.emit("reasoning", "", self.at)
                yield from self._reasoning()
                return
            if marker not in self.CALLS.begin:
                self.emit("reasoning" if marker == THINK_END else "content", "", self.at)
                yield from self.skip("\n", LINE_FEEDS)
                return
            marker = yield from self._call(marker)

    def _reasoning(self) -> Reading[None]:
        yield from self.skip("\n", LINE_FEEDS)
        yield from self.stream(_REASONING_ENDS, partial(self.emit, "reasoning"))
        self.emit("reasoning", "", self.at)
        yield from self.skip("\n", LINE_FEEDS)

    def _call(self, marker: str) -> Reading[str | None]:
        """One call; the marker that ended it, where that begins something else."""
        if self._calls and not self._output.parallel_calls:
            self.over = True
            self.emit("content", "", self.at)  # the marker's tokens count: they ended the answer
            raise EndOfText
        self.keep(self.at - len(marker))
        try:
            yield from self.read_call(marker)
            yield from self.skip(" \n\r\t")
        except Malformed:
            if self.undo(len(marker)):
                return None
        except EndOfText:
            if self.undo(len(marker)):
                return None
            raise
        ended = yield from self.stream(self._calls_end, partial(self.emit, "content"))
        if ended not in self.CALLS.end:
            return ended
        self.emit("tool_call", "", self.at)
        yield from self.skip("\n", LINE_FEEDS)
        return None

    def read_call(self, marker: str) -> Reading[None]:
        """Read one call, its end marker excluded; ``marker``, which began it, has been read.

        :raises Malformed: it is none. Before ``begin_call`` it becomes text again; after it, what
            is left does.
        """
        raise NotImplementedError
