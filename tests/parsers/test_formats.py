"""Each family's answers, as the models write them, and what is wrong with some."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from tests.parsers.reading import CLOSED, OPEN, RECORDED, Read, Recorded, read
from tilert_stream.events import OutputFormat

recorded = pytest.mark.parametrize("answer", RECORDED.values(), ids=RECORDED.keys())


@recorded
def test_a_family_s_answer(answer: Recorded) -> None:
    seen = read(answer.parser, [answer.text], answer.output)
    assert (seen.reasoning, seen.content) == (answer.reasoning, answer.content)
    calls = tuple((name, orjson.loads(arguments)) for name, arguments in seen.calls)
    assert calls == answer.calls
    assert seen.called is bool(answer.calls)


@recorded
def test_the_answer_in_single_characters(answer: Recorded) -> None:
    whole = read(answer.parser, [answer.text], answer.output)
    assert read(answer.parser, answer.text, answer.output) == whole


@recorded
def test_without_tools_calls_stay_text(answer: Recorded) -> None:
    seen = read(answer.parser, answer.text, replace(answer.output, tools=()))
    assert seen.calls == []
    assert seen.reasoning == answer.reasoning
    assert seen.content.startswith(answer.content)
    for name, _ in answer.calls:
        assert name in seen.content


@recorded
def test_an_answer_that_ends_anywhere_is_never_called_complete_too_early(
    answer: Recorded,
) -> None:
    for end in range(len(answer.text)):
        seen = read(answer.parser, [answer.text[:end]], answer.output)
        # A call without its name yet is text again, from its marker on.
        assert answer.content.startswith(seen.content.partition("<")[0].strip("\n"))
        if seen.called:
            for _, arguments in seen.calls:
                assert isinstance(orjson.loads(arguments), dict)


MALFORMED: dict[str, tuple[str, str, Read]] = {
    "no JSON": (
        "hermes",
        "<tool_call>oops</tool_call> then",
        Read("", "<tool_call>oops</tool_call> then"),
    ),
    "a list": ("hermes", "<tool_call>[1]</tool_call>", Read("", "<tool_call>[1]</tool_call>")),
    "no name": (
        "hermes",
        '<tool_call>{"arguments": {}}</tool_call>',
        Read("", '<tool_call>{"arguments": {}}</tool_call>'),
    ),
    "an empty name": (
        "hermes",
        '<tool_call>{"name": ""}</tool_call>',
        Read("", '<tool_call>{"name": ""}</tool_call>'),
    ),
    "broken in the arguments": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": <b>}}</tool_call>!',
        Read("", "<b>}}!", [("f", '{"a": ')]),
    ),
    "arguments that are no JSON": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": yes}}</tool_call>',
        Read("", "}", [("f", '{"a": yes}')]),
    ),
    "the last brace is missing": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>!',
        Read("", "!", [("f", '{"a": 1}')], called=True),
    ),
    "the end is missing before the next": (
        "hermes",
        '<tool_call>{"name": "f"}\n<tool_call>{"name": "g"}</tool_call>',
        Read("", "", [("f", "{}"), ("g", "{}")], called=True),
    ),
    "a wrong one, then a right one": (
        "hermes",
        'x <tool_call>no<tool_call>{"name": "f"}</tool_call>',
        Read("", "x <tool_call>no", [("f", "{}")], called=True),
    ),
    "cut before the name": (
        "hermes",
        '<tool_call>\n{"name": "f',
        Read("", '<tool_call>\n{"name": "f'),
    ),
    "cut in the arguments": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "b',
        Read("", "", [("f", '{"a": "b')]),
    ),
    "GLM: no name": (
        "glm47",
        "<tool_call>a b<arg_key>",
        Read("", "<tool_call>a b<arg_key>"),
    ),
    "GLM: text between": (
        "glm47",
        "<tool_call>f<arg_key>a</arg_key>x</tool_call>!",
        Read("", "x!", [("f", "")]),
    ),
    "GLM: cut in a value": (
        "glm47",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ber</arg_val",
        Read("", "", [("get_weather", '{"city": "Ber</arg_val')]),
    ),
    "DeepSeek: no JSON": (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a b<｜tool▁sep｜>{",
        Read("", "<｜tool▁call▁begin｜>a b<｜tool▁sep｜>{"),
    ),
    "DeepSeek: no invocation": (
        "deepseek",
        "<｜DSML｜invoke nme='f'>",
        Read("", "<｜DSML｜invoke nme='f'>"),
    ),
    "DeepSeek: no parameter": (
        "deepseek",
        '<｜DSML｜invoke name="f"><｜DSML｜parameter>x</｜DSML｜invoke>!',
        Read("", "x!", [("f", "")]),
    ),
}


@pytest.mark.parametrize(("name", "text", "right"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_calls_lose_no_text(name: str, text: str, right: Read) -> None:
    assert read(name, [text]) == right
    assert read(name, text) == right


@pytest.mark.parametrize(
    ("output", "text", "reasoning", "content"),
    [
        pytest.param(OPEN, "a</think>b", "a", "b", id="open-in-the-prompt"),
        pytest.param(OPEN, "<think>\na</think>b", "a", "b", id="marker-though-it-is-open"),
        pytest.param(OPEN, "a", "a", "", id="never-closed"),
        pytest.param(OPEN, "a</thin g", "a</thin g", "", id="no-marker"),
        pytest.param(OPEN, "a\n\n", "a\n\n", "", id="line-feeds-at-the-end"),
        pytest.param(OPEN, "a\n\n\n</think>\n\n\nb", "a\n", "\nb", id="more-line-feeds"),
        pytest.param(CLOSED, "</think>\n\nb", "", "b", id="closed-though-it-is-not-open"),
        pytest.param(CLOSED, "b <think> c", "", "b <think> c", id="an-answer-that-speaks-of-it"),
        pytest.param(CLOSED, "\n\nb", "", "\n\nb", id="no-reasoning"),
        pytest.param(CLOSED, "<think></think>b", "", "b", id="empty"),
        pytest.param(CLOSED, "b</thi", "", "b</thi", id="held-at-the-end"),
        pytest.param(CLOSED, "b\n<tool_", "", "b\n<tool_", id="call-marker-held-at-the-end"),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "glm47", "deepseek", "think"])
def test_reasoning(
    name: str, output: OutputFormat, text: str, reasoning: str, content: str
) -> None:
    for pieces in ([text], text):
        seen = read(name, pieces, output)
        assert (seen.reasoning, seen.content, seen.calls) == (reasoning, content, [])


def test_reasoning_again_behind_a_call() -> None:
    text = '<think>a</think><tool_call>{"name": "f"}</tool_call>\n<think>\nb\n</think>\n\nc'
    assert read("hermes", text) == Read("ab", "c", [("f", "{}")], called=True)


@pytest.mark.parametrize("chunk", [1, 10_000])
def test_one_call_where_one_is_asked_for(chunk: int) -> None:
    recorded = RECORDED["qwen3"]
    output = replace(recorded.output, parallel_calls=False)
    text = recorded.text
    pieces = [text[at : at + chunk] for at in range(0, len(text), chunk)]
    seen = read("hermes", pieces, output)
    assert [name for name, _ in seen.calls] == ["get_weather"]
    assert seen.called


def test_a_text_leaves_before_its_end() -> None:
    """Arguments are streamed, not sent whole."""
    for name, text in (
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Ber'),
        ("glm47", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ber"),
        ("deepseek", '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Ber'),
    ):
        seen = read(name, [text])
        assert seen.calls == [("get_weather", '{"city": "Ber')]
        assert not seen.called
