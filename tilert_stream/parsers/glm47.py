"""GLM's calls: keys and values in tags, as the chat templates of GLM-4.5 to GLM-5 have them.

::

    <tool_call>weather<arg_key>city</arg_key><arg_value>Berlin</arg_value></tool_call>

GLM-4.5 and 4.6 put line feeds between the tags. A text is written as it is, anything else as JSON:
the tool's schema says which.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .arguments import ArgumentWriter
from .call_rules import tagged_call_rule
from .format import FormatParser
from .markers import Markers
from .reader import Malformed
from .sections import CallMarkers, SectionReader

if TYPE_CHECKING:
    from .reader import Reading

__all__ = ("GLM47", "GLM47Reader")

HEAD_MAX: Final = 512
"""Characters within which a name or a key ends."""
KEY: Final = "<arg_key>"
END: Final = "</tool_call>"
_NAME: Final = re.compile(r"[\w.:/-]+")
_NAME_END: Final = Markers((KEY, END))
_KEY_END: Final = Markers(("</arg_key>",))
_VALUE: Final = Markers(("<arg_value>",))
_VALUE_END: Final = Markers(("</arg_value>",))


class GLM47Reader(SectionReader):
    """Reads one answer."""

    CALLS = CallMarkers(
        begin=("<tool_call>",),
        end=(END,),
        within=(KEY, "</arg_key>", "<arg_value>", "</arg_value>"),
    )

    def read_call(self, marker: str) -> Reading[None]:
        """A name, then keys and values."""
        name, marker = yield from self.until(_NAME_END, HEAD_MAX)
        self.at -= len(marker)
        if not _NAME.fullmatch(name.strip()):
            raise Malformed
        writer = ArgumentWriter(self, self._output.tools, name.strip())
        while True:
            yield from self.skip(" \n\r\t")
            following = yield from self.opening(_NAME_END)
            if following != KEY:
                break
            key, _ = yield from self.until(_KEY_END, HEAD_MAX)
            yield from self.skip(" \n\r\t")
            if (yield from self.opening(_VALUE)) is None:
                raise Malformed
            yield from writer.read(key.strip(), _VALUE_END)
        if following is None:
            raise Malformed
        self.at -= len(END)
        writer.end()


GLM47: Final = FormatParser(
    "glm47",
    GLM47Reader,
    lambda template: KEY in template and "<tool_call>" in template,
    tagged_call_rule,
)
