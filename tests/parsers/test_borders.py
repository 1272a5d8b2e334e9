"""However an answer is cut into deltas, it comes to the same: markers never leak, text is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parsers.reading import CLOSED, OPEN, RECORDED, Recorded, cut, open_reader, read
from tilert_stream.events import OutputFormat, Tool
from tilert_stream.parsers.markers import Markers

PARSERS = ("hermes", "glm47", "deepseek", "think")
MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    '<｜DSML｜invoke name="f">',
    '<｜DSML｜parameter name="a" string="true">',
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
)
SCRAPS = (
    *MARKERS,
    *(marker[:-2] for marker in MARKERS),
    "\n",
    "\n\n",
    "\n\n\n",
    "f",
    " text ",
    "<",
    "```json\n",
    "```",
    '{"name": "f", "arguments": {"a": [1, "x\\n{"]}}',
    '{"arguments": {}, "name": "g"}',
    '{"name": "f", "arguments": {"a":',
    '"b"',
    "}",
    "\\",
    "😀",
    "12",
)
ANSWERS = st.lists(st.sampled_from(SCRAPS), max_size=14).map("".join)


@pytest.mark.parametrize("answer", RECORDED.values(), ids=RECORDED.keys())
def test_one_cut_at_every_place(answer: Recorded) -> None:
    whole = read(answer.parser, [answer.text], answer.output)
    for place in range(1, len(answer.text)):
        assert read(answer.parser, cut(answer.text, [place]), answer.output) == whole


@pytest.mark.parametrize("answer", RECORDED.values(), ids=RECORDED.keys())
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_cuts(answer: Recorded, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(1, len(answer.text) - 1), max_size=40))
    whole = read(answer.parser, [answer.text], answer.output)
    assert read(answer.parser, cut(answer.text, places), answer.output) == whole


@pytest.mark.parametrize("output", [OPEN, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=120, deadline=None)
@given(text=ANSWERS, data=st.data())
def test_any_text_at_any_cuts(
    name: str, output: OutputFormat, text: str, data: st.DataObject
) -> None:
    """Whatever a model babbles: no exception, and the same for every cut."""
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=30))
    whole = read(name, [text] if text else [], output)
    assert read(name, cut(text, places) if text else [], output) == whole
    assert read(name, text, output) == whole


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.text(alphabet="ab\n<>/think{}\"'`|", max_size=60))
def test_text_without_markers_is_kept(name: str, text: str) -> None:
    """All of it, in order, at any end."""
    seen = read(name, text, OutputFormat("", (Tool("f"),)))
    if not any(marker in text for marker in MARKERS):
        assert seen.content == text


def test_only_what_may_become_a_marker_is_held() -> None:
    reader = open_reader("hermes", CLOSED)
    shown = ""
    for text, right in (
        ("Hi <", "Hi "),
        ("tool", "Hi "),
        ("_x", "Hi <tool_x"),
        ("\n", "Hi <tool_x"),
    ):
        shown += "".join(piece.text for piece in reader.feed(text))
        assert shown == right
    assert "".join(piece.text for piece in reader.finish()) == "\n"


def test_markers_of_which_one_begins_another() -> None:
    with pytest.raises(ValueError, match="'<a' is the beginning of another"):
        Markers(("<a>", "<a"))
