"""The shared marker scanner: text in piece by piece, a format that reads on as if it were whole.

A format is written as generators that ask for what comes next and yield where the text ends for
now: the same lines then serve every split into deltas.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from uuid import uuid4

from tilert_stream.events import ToolCallStart

from .abc import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from tilert_stream.events import Channel

    from .markers import Markers

__all__ = ("EndOfText", "Malformed", "MarkerReader", "Reading")

T = TypeVar("T")

Reading: TypeAlias = "Generator[None, None, T]"
"""Yields where it needs more text; returns what it has read."""


class EndOfText(Exception):
    """The answer has ended where more was needed."""


class Malformed(Exception):
    """What was read is not of the format."""


class MarkerReader:
    """Reads one answer; a format is what ``read`` does.

    Between two yields everything before ``at`` is forgotten, so that no position in ``text`` may be
    kept across one; what ``keep`` was told stays.
    """

    def __init__(self) -> None:
        self.text = ""
        """What has come and is not read yet begins at ``at``."""
        self.at: int = 0
        self.over = False
        """Whether the answer ends here, though the model would go on."""
        self._base = 0
        """Characters of the answer before ``text``."""
        self._kept: int | None = None
        self._ended = False
        self._pieces: list[Piece] = []
        self._calls = 0
        self._complete = 0
        self._reading = self.read()

    @property
    def called(self) -> bool:
        """Whether there are calls, and all of them are complete."""
        return 0 < self._calls == self._complete

    def read(self) -> Reading[None]:
        """Read the whole answer; at its end ``more`` raises ``EndOfText``."""
        raise NotImplementedError

    def feed(self, text: str) -> Sequence[Piece]:
        """What is certain after ``text``."""
        read = self.at if self._kept is None else self._kept
        self.text = self.text[read:] + text if read < len(self.text) else text
        self.at -= read
        self._base += read
        if self._kept is not None:
            self._kept = 0
        return self._go_on()

    def finish(self) -> Sequence[Piece]:
        """What was held back."""
        self._ended = True
        return self._go_on()

    def _go_on(self) -> Sequence[Piece]:
        self._pieces = []
        with suppress(EndOfText):
            next(self._reading, None)
        return self._pieces

    # --- out ----------------------------------------------------------------------------------

    def emit(self, channel: Channel, text: str, begin: int) -> None:
        """``text`` stands for what was read from ``begin`` on, a place in ``self.text``."""
        index = self._calls - 1 if channel == "tool_call" else 0
        end = self._base + self.at
        if self._pieces:
            last = self._pieces[-1]
            if last.channel == channel and last.call_index == index:
                self._pieces[-1] = last._replace(text=last.text + text, end=end)
                return
        self._pieces.append(Piece(channel, text, self._base + begin, end, index))

    def begin_call(self, name: str) -> None:
        """A call of ``name`` begins: what was kept for the case that it is none is forgotten."""
        self._kept = None
        here = self._base + self.at
        call = ToolCallStart(f"call_{uuid4().hex}", name)
        self._pieces.append(Piece("tool_call", "", here, here, self._calls, call))
        self._calls += 1

    def end_call(self) -> None:
        """The last call's arguments are complete, and valid."""
        self._complete += 1

    def keep(self, begin: int) -> None:
        """What was read from ``begin`` on may turn out to be plain text."""
        self._kept = begin

    def undo(self, length: int) -> bool:
        """Emit ``length`` characters from where ``keep`` was called as content; go on behind them.

        :returns: False if nothing was kept: a call has begun since.
        """
        begin, self._kept = self._kept, None
        if begin is None:
            return False
        self.at = begin + length
        self.emit("content", self.text[begin : self.at], begin)
        return True

    # --- in -----------------------------------------------------------------------------------

    def more(self) -> Reading[None]:
        """Wait for more text.

        :raises EndOfText: there is none.
        """
        if self._ended:
            raise EndOfText
        yield

    def stream(self, markers: Markers, emit: Callable[[str, int], None]) -> Reading[str]:
        """Emit text as it comes, up to the next of ``markers``, which is returned.

        ``at`` is then behind the marker.
        """
        search = markers.search
        while True:
            begin = self.at
            found = search(self.text, begin)
            marker = None if found is None else found[1]
            if found is None or (marker is None and self._ended):
                self.at = len(self.text)
            else:
                self.at = found.start()
            if self.at > begin:
                emit(self.text[begin : self.at], begin)
            if found is not None and marker is not None:
                self.at = found.end()
                return marker
            yield from self.more()

    def until(self, markers: Markers, longest: int) -> Reading[tuple[str, str]]:
        """The text before the next of ``markers``, and that marker; nothing is emitted.

        :raises Malformed: none comes within ``longest`` characters.
        """
        while True:
            found = markers.search(self.text, self.at)
            if found is not None and found[1] is not None:
                text = self.text[self.at : found.start()]
                self.at = found.end()
                return text, found[1]
            if len(self.text) - self.at > longest:
                raise Malformed
            yield from self.more()

    def opening(self, markers: Markers) -> Reading[str | None]:
        """The marker that stands here, read; None, and nothing read, where there is none."""
        while True:
            found = markers.match(self.text, self.at)
            if found is not None and found[1] is not None:
                self.at = found.end()
                return found[1]
            if self.at < len(self.text) and (found is None or self._ended):
                return None
            yield from self.more()

    def skip(self, characters: str, most: int | None = None) -> Reading[None]:
        """Read over ``characters``, ``most`` at most."""
        count = 0
        while most is None or count < most:
            if self.at == len(self.text):
                yield from self.more()
            elif self.text[self.at] in characters:
                self.at += 1
                count += 1
            else:
                return
