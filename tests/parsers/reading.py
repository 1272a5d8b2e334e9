"""Answers in the formats that models write, and what an answer comes to however it is cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilert_stream.events import OutputFormat, Tool
from tilert_stream.parsers.choice import choose_parser

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tilert_stream.parsers.abc import OutputReader, Piece

WEATHER = Tool(
    "get_weather",
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)
OPEN = OutputFormat("<|assistant|>\n<think>\n", (WEATHER,))
"""The prompt leaves reasoning open."""
CLOSED = OutputFormat("<|assistant|>\n", (WEATHER,))


@dataclass
class Read:
    """An answer by channel."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Name and arguments."""
    called: bool = False


def open_reader(name: str, output: OutputFormat) -> OutputReader:
    parser = choose_parser(name, None)
    assert parser is not None
    return parser.open(output)


def read(name: str, pieces: Iterable[str], output: OutputFormat = CLOSED) -> Read:
    """``pieces`` through a reader; that its pieces are in order is checked on the way."""
    reader = open_reader(name, output)
    answer = Read()
    place = 0
    received = 0
    for text in pieces:
        if reader.over:
            break
        received += len(text)
        place = collect(answer, reader.feed(text), place)
        assert place <= received
    collect(answer, reader.finish(), place)
    answer.called = reader.called
    return answer


def collect(answer: Read, pieces: Sequence[Piece], place: int) -> int:
    for piece in pieces:
        assert place <= piece.end
        assert piece.begin <= piece.end
        place = piece.end
        if piece.channel == "reasoning":
            answer.reasoning += piece.text
        elif piece.channel == "content":
            answer.content += piece.text
        else:
            if piece.call is not None:
                assert piece.call_index == len(answer.calls), "a call begins once"
                answer.calls.append((piece.call.name, ""))
            called, arguments = answer.calls[piece.call_index]
            answer.calls[piece.call_index] = (called, arguments + piece.text)
    return place


def cut(text: str, places: Iterable[int]) -> list[str]:
    """``text`` cut at ``places``; no piece is empty."""
    inner = sorted({place for place in places if 0 < place < len(text)})
    return [text[a:b] for a, b in zip([0, *inner], [*inner, len(text)], strict=True)]


@dataclass(frozen=True)
class Recorded:
    """An answer as a model of the family writes it, and what it is to be."""

    parser: str
    text: str
    output: OutputFormat
    reasoning: str
    content: str
    calls: tuple[tuple[str, dict[str, object]], ...]


BERLIN: tuple[str, dict[str, object]] = ("get_weather", {"city": "Berlin", "days": 3})
PARIS: tuple[str, dict[str, object]] = ("get_weather", {"city": "Paris 😀", "days": 1})

RECORDED = {
    "qwen3": Recorded(
        "hermes",
        "<think>\nThe user asks for two cities.\n</think>\n\nI will look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin", "days": 3}}\n'
        '</tool_call>\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris 😀",'
        ' "days": 1}}\n</tool_call>',
        CLOSED,
        "The user asks for two cities.",
        "I will look.",
        (BERLIN, PARIS),
    ),
    "qwen3-without-thinking": Recorded(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin", "days": 3}}\n'
        "</tool_call>",
        OutputFormat("<|im_start|>assistant\n<think>\n\n</think>\n\n", (WEATHER,)),
        "",
        "",
        (BERLIN,),
    ),
    "hermes-arguments-first": Recorded(
        "hermes",
        '<tool_call>\n{"arguments": {"city": "Berlin", "days": 3}, "id": [1, "}"], "name":'
        ' "get_weather"}\n</tool_call>',
        CLOSED,
        "",
        "",
        (BERLIN,),
    ),
    "hermes-arguments-as-text": Recorded(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Berlin\\", \\"days\\":'
        ' 3}"}</tool_call>',
        CLOSED,
        "",
        "",
        (BERLIN,),
    ),
    "hermes-no-arguments": Recorded(
        "hermes",
        '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now", "arguments": null}'
        "</tool_call>",
        CLOSED,
        "",
        "",
        (("now", {}), ("now", {})),
    ),
    "hermes-marker-in-a-string": Recorded(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call>\n{\\"\\\\"}}'
        "</tool_call>",
        CLOSED,
        "",
        "",
        (("get_weather", {"city": '</tool_call>\n{"\\'}),),
    ),
    "glm-4.7": Recorded(
        "glm47",
        "Two cities.</think>I will look.<tool_call>get_weather<arg_key>city</arg_key><arg_value>"
        "Berlin</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>"
        "get_weather<arg_key>city</arg_key><arg_value>Paris 😀</arg_value><arg_key>days</arg_key>"
        "<arg_value>1</arg_value></tool_call>",
        OPEN,
        "Two cities.",
        "I will look.",
        (BERLIN, PARIS),
    ),
    "glm-4.5": Recorded(
        "glm47",
        "\n<think>Two cities.</think>\nI will look.\n<tool_call>get_weather\n<arg_key>city"
        "</arg_key>\n<arg_value>Berlin</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3"
        "</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        CLOSED,
        "Two cities.",
        "I will look.",
        (BERLIN, ("now", {})),
    ),
    "glm-values": Recorded(
        "glm47",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value> 12 \n\"'</arg_value>"
        '<arg_key>more</arg_key><arg_value>{"a": [1, null]}</arg_value>'
        "<arg_key>other</arg_key><arg_value>plain text</arg_value></tool_call>",
        CLOSED,
        "",
        "",
        (("get_weather", {"city": " 12 \n\"'", "more": {"a": [1, None]}, "other": "plain text"}),),
    ),
    "deepseek-r1": Recorded(
        "deepseek",
        "Two cities.\n</think>\n\nI will look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
        '<｜tool▁sep｜>get_weather\n```json\n{"city": "Berlin", "days": 3}\n```<｜tool▁call▁end｜>'
        "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris 😀", "days": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        OPEN,
        "Two cities.",
        "I will look.",
        (BERLIN, PARIS),
    ),
    "deepseek-v3.1": Recorded(
        "deepseek",
        "I will look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Berlin", "days": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_weather'
        '<｜tool▁sep｜>{"city": "Paris 😀", "days": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        OutputFormat("<｜Assistant｜></think>", (WEATHER,)),
        "",
        "I will look.",
        (BERLIN, PARIS),
    ),
    "deepseek-v3.2": Recorded(
        "deepseek",
        "Two cities.</think>I will look.\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Berlin</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris 😀</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">1</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        OPEN,
        "Two cities.",
        "I will look.",
        (BERLIN, PARIS),
    ),
    "qwq": Recorded(
        "think",
        "<think>\nShort.\n</think>\n\nHi <tool_call>",
        CLOSED,
        "Short.",
        "Hi <tool_call>",
        (),
    ),
}
