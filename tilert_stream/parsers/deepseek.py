"""DeepSeek's calls, in the three formats that its models write.

::

    V3, R1   <｜tool▁call▁begin｜>function<｜tool▁sep｜>weather⏎```json⏎{…}⏎```<｜tool▁call▁end｜>
    V3.1     <｜tool▁call▁begin｜>weather<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
    V3.2     <｜DSML｜invoke name="weather">
             <｜DSML｜parameter name="city" string="true">Berlin</｜DSML｜parameter>
             </｜DSML｜invoke>

The first two stand between ``<｜tool▁calls▁begin｜>`` and ``<｜tool▁calls▁end｜>``, the third in
``<｜DSML｜function_calls>``. As the chat templates and, for V3.2, the encoding file that comes with
the model have them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .arguments import ArgumentWriter
from .format import FormatParser
from .hermes import JSONCall
from .json_text import next_character, stream_value
from .markers import Markers
from .reader import Malformed
from .sections import CallMarkers, SectionReader

if TYPE_CHECKING:
    from .reader import Reading

__all__ = ("DEEPSEEK", "DeepSeekReader")

HEAD_MAX: Final = 512
"""Characters within which a name or a tag ends."""
CALL: Final = "<｜tool▁call▁begin｜>"
CALLS: Final = "<｜tool▁calls▁begin｜>"
SEPARATOR: Final = "<｜tool▁sep｜>"
INVOKE: Final = "<｜DSML｜invoke"
INVOKE_END: Final = "</｜DSML｜invoke>"
PARAMETER: Final = "<｜DSML｜parameter"
_NAME: Final = re.compile(r"[\w.:/-]+")
_SEPARATOR: Final = Markers((SEPARATOR,))
_LINE_FEED: Final = Markers(("\n",))
_OBJECT: Final = Markers(("{",))
_FENCE_END: Final = Markers(("```",))
_TAG_END: Final = Markers((">",))
_INVOKE_TAG: Final = re.compile(r'\s+name="([\w.:/-]+)"\s*')
_PARAMETER_TAG: Final = re.compile(r'\s+name="([^"]+)"(?:\s+string="(true|false)")?\s*')
_WITHIN: Final = Markers((PARAMETER, INVOKE_END))
_VALUE_END: Final = Markers(("</｜DSML｜parameter>",))


class DeepSeekReader(SectionReader):
    """Reads one answer."""

    CALLS = CallMarkers(
        begin=(CALL, INVOKE),
        end=("<｜tool▁call▁end｜>", INVOKE_END),
        around=(
            CALLS,
            "<｜tool▁calls▁end｜>",
            "<｜DSML｜function_calls>",
            "</｜DSML｜function_calls>",
        ),
        within=(SEPARATOR, "｜DSML｜"),  # the token that the tags of V3.2 are made of
    )

    def read_call(self, marker: str) -> Reading[None]:
        """Whichever format ``marker`` begins."""
        yield from self._invoke() if marker == INVOKE else self._call_json()

    def _call_json(self) -> Reading[None]:
        name, _ = yield from self.until(_SEPARATOR, HEAD_MAX)
        if (yield from next_character(self)) != "{":
            # What came first was the kind of call; V3.1 leaves it out.
            name, _ = yield from self.until(_LINE_FEED, HEAD_MAX)
        if not _NAME.fullmatch(name.strip()):
            raise Malformed
        call = JSONCall(self)
        call.name(name.strip())
        fence, _ = yield from self.until(_OBJECT, HEAD_MAX)
        self.at -= len("{")
        if fence.strip() not in ("", "```json", "```"):
            raise Malformed
        yield from stream_value(self, call.arguments)
        call.end_arguments()
        if fence.strip():
            before, ticks = yield from self.until(_FENCE_END, HEAD_MAX)
            if before.strip():
                self.at -= len(before + ticks)
                raise Malformed

    def _invoke(self) -> Reading[None]:
        tag, _ = yield from self.until(_TAG_END, HEAD_MAX)
        named = _INVOKE_TAG.fullmatch(tag)
        if named is None:
            raise Malformed
        writer = ArgumentWriter(self, self._output.tools, named[1])
        while True:
            yield from self.skip(" \n\r\t")
            following = yield from self.opening(_WITHIN)
            if following != PARAMETER:
                break
            tag, _ = yield from self.until(_TAG_END, HEAD_MAX)
            parameter = _PARAMETER_TAG.fullmatch(tag)
            if parameter is None:
                raise Malformed
            is_text = None if parameter[2] is None else parameter[2] == "true"
            yield from writer.read(parameter[1], _VALUE_END, is_text=is_text)
        if following is None:
            raise Malformed
        self.at -= len(INVOKE_END)
        writer.end()


DEEPSEEK: Final = FormatParser(
    "deepseek", DeepSeekReader, lambda template: CALLS in template or INVOKE in template
)
