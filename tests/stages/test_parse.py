"""Tokens beside the text they belong to, how an answer ends, and parsers that fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parsers.reading import CLOSED, OPEN, RECORDED, WEATHER, Recorded, cut
from tilert_stream.errors import EngineFault
from tilert_stream.events import Finished, OutputFormat, TextDelta, TokenLogprob
from tilert_stream.fusion import PassThrough
from tilert_stream.parsers.choice import choose_parser
from tilert_stream.parsers.hermes import HERMES
from tilert_stream.stages.parse import ParseOutput
from tilert_stream.testing import assert_contract, make_request, make_scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilert_stream.parsers.abc import OutputParser, OutputReader, Piece

STOP = Finished("stop")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin"}}\n</tool_call>'


def deltas(pieces: Iterable[str]) -> list[TextDelta]:
    """One token a piece."""
    return [
        TextDelta(text, (n,), (len(text),), (TokenLogprob(n, -1.0),))
        for n, text in enumerate(pieces)
    ]


def parse(
    items: Iterable[TextDelta],
    outcome: Finished = STOP,
    *,
    parser: OutputParser = HERMES,
    output: OutputFormat = CLOSED,
) -> tuple[list[TextDelta], Finished]:
    out: list[TextDelta] = []
    with make_scope(make_request(output=output)) as scope:
        stage = ParseOutput(parser)(scope)
        for item in items:
            for made in stage.feed(item):
                if isinstance(made, Finished):
                    return out, made
                out.append(made)
        for made in stage.finish(outcome):
            if isinstance(made, Finished):
                return out, made
            out.append(made)
    return out, outcome


def by_channel(out: Iterable[TextDelta]) -> dict[str, tuple[str, list[int]]]:
    seen: dict[str, tuple[str, list[int]]] = {}
    for delta in out:
        text, ids = seen.get(delta.channel, ("", []))
        seen[delta.channel] = (text + delta.text, [*ids, *delta.ids])
    return seen


def check_places(out: Iterable[TextDelta]) -> None:
    for delta in out:
        assert len(delta.ids) == len(delta.ends)
        assert list(delta.ends) == sorted(delta.ends)
        assert all(0 <= end <= len(delta.text) for end in delta.ends)
        if delta.ids:
            assert delta.logprobs is not None
            assert tuple(logprob.token_id for logprob in delta.logprobs) == delta.ids


def test_tokens_travel_in_the_channel_of_their_text() -> None:
    pieces = ["a", " b", "</think>", "\n\n", "c", "\n", "<tool_call>", CALL[11:-12], "</tool_call>"]
    out, outcome = parse(deltas(pieces), output=OPEN)
    check_places(out)
    assert by_channel(out) == {
        "reasoning": ("a b", [0, 1, 2]),
        "content": ("c", [3, 4]),
        "tool_call": ('{"city": "Berlin"}', [5, 6, 7, 8]),
    }
    assert outcome == Finished("tool_calls")


def test_content_that_no_marker_is_in_is_the_same_object() -> None:
    items = deltas(["Hel", "lo"])
    out, _ = parse(items)
    assert all(made is item for made, item in zip(out, items, strict=True))


def test_a_batch_with_a_border_in_it() -> None:
    out, _ = parse([TextDelta("a</think>b", (7, 8, 9), (1, 9, 10))], output=OPEN)
    assert out == [
        TextDelta("a", (7, 8), (1, 1), None, "reasoning"),
        TextDelta("b", (9,), (1,), None, "content"),
    ]


def test_tokens_without_text_keep_their_place() -> None:
    items = [
        TextDelta("a", (0,), (1,)),
        TextDelta("", (1,), (0,)),
        TextDelta("</thi", (2,), (5,)),
        TextDelta("", (3,), (0,)),
        TextDelta("nk>", (4,), (3,)),
        TextDelta("b", (5,), (1,)),
        TextDelta("", (6,), (0,)),
    ]
    out, _ = parse(items, output=OPEN)
    assert by_channel(out) == {"reasoning": ("a", [0, 1, 2, 3, 4]), "content": ("b", [5, 6])}


def test_tokens_behind_the_last_text_are_counted() -> None:
    out, _ = parse(deltas(["a", "</think>", "\n", "\n"]), output=OPEN)
    assert sum(len(delta.ids) for delta in out) == 4


@pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED.keys())
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_token_comes_out_once_in_order(recorded: Recorded, data: st.DataObject) -> None:
    parser = choose_parser(recorded.parser, None)
    assert parser is not None
    places = data.draw(st.lists(st.integers(1, len(recorded.text) - 1), max_size=30))
    pieces = cut(recorded.text, places)
    out, outcome = parse(deltas(pieces), parser=parser, output=recorded.output)
    check_places(out)
    assert [token for delta in out for token in delta.ids] == list(range(len(pieces)))
    seen = by_channel(out)
    assert seen.get("content", ("",))[0] == recorded.content
    assert seen.get("reasoning", ("",))[0] == recorded.reasoning
    assert outcome.reason == ("tool_calls" if recorded.calls else "stop")


@pytest.mark.parametrize(
    ("text", "given_", "right"),
    [
        pytest.param(CALL, STOP, Finished("tool_calls"), id="complete"),
        pytest.param(CALL, Finished("length"), Finished("length"), id="complete-but-cut"),
        pytest.param(CALL[:-30], Finished("length"), Finished("length"), id="cut"),
        pytest.param(CALL[:-30], STOP, STOP, id="the-model-gave-up"),
        pytest.param(CALL, Finished("stop", 5), Finished("stop", 5), id="a-stop-token"),
        pytest.param(CALL, Finished("stop", "x"), Finished("stop", "x"), id="a-stop-string"),
        pytest.param(CALL + CALL[:-30], STOP, STOP, id="the-second-is-not-complete"),
        pytest.param("text", STOP, STOP, id="no-call"),
    ],
)
def test_finish_reasons(text: str, given_: Finished, right: Finished) -> None:
    assert parse(deltas([text]), given_)[1] == right


def test_what_the_engine_has_counted_stays_with_the_end() -> None:
    _, outcome = parse(deltas([CALL]), Finished("stop", account={"forwards": 3}))
    assert outcome.reason == "tool_calls"
    assert outcome.account == {"forwards": 3}


def test_a_failed_request_stays_failed() -> None:
    failed = Finished.failed(EngineFault("no"))
    out, outcome = parse(deltas([CALL, "b <tool_"]), failed)
    assert outcome is failed
    assert out[-1].text.endswith("b ") or out[-1].text == "<tool_"


def test_the_second_of_calls_that_are_not_parallel() -> None:
    output = OutputFormat("", (WEATHER,), parallel_calls=False)
    pieces = [CALL, "\n", CALL[:5], CALL[5:], "not fed"]
    out, outcome = parse(deltas(pieces), output=output)
    assert outcome == Finished("tool_calls")
    assert by_channel(out)["tool_call"][0] == '{"city": "Berlin"}'


def test_answers_that_are_only_text_pass_through() -> None:
    with make_scope(make_request()) as scope:
        assert isinstance(ParseOutput(HERMES)(scope), PassThrough)


class Failing:
    """Fails at the character ``!``, at the end, or at once; holds what is in brackets."""

    name = "failing"
    tools = False
    markers = ()

    def __init__(self, *, when: str) -> None:
        self._when = when

    def writes(self, _template: str) -> bool:
        return False

    def open(self, output: OutputFormat) -> OutputReader:
        if self._when == "open":
            raise RuntimeError("no")
        return FailingReader(self._when)


class FailingReader:
    called = False
    over = False

    def __init__(self, when: str) -> None:
        self._when = when

    def feed(self, text: str) -> Sequence[Piece]:
        if "!" in text:
            raise RuntimeError("no")
        return ()

    def finish(self) -> Sequence[Piece]:
        if self._when == "finish":
            raise RuntimeError("no")
        return ()


@pytest.mark.parametrize("when", ["open", "feed", "finish"])
def test_a_parser_s_error_ends_no_stream(when: str, caplog: pytest.LogCaptureFixture) -> None:
    pieces = ["held ", "", "too"] if when == "finish" else ["held ", "", "!", " and on"]
    with caplog.at_level(logging.ERROR):
        out, outcome = parse(deltas(pieces), parser=Failing(when=when))
    assert outcome is STOP
    assert by_channel(out) == {"content": ("".join(pieces), list(range(len(pieces))))}
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("name", ["hermes", "glm47", "deepseek", "think"])
def test_contract(name: str) -> None:
    parser = choose_parser(name, None)
    assert parser is not None
    assert_contract(ParseOutput(parser), request=make_request(output=CLOSED))
    assert_contract(ParseOutput(parser), request=make_request(output=OPEN))
