"""Which parser reads a model's answers."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from tilert_stream.errors import ConfigError
from tilert_stream.parsers import choice
from tilert_stream.parsers.choice import BUILT_IN, choose_parser
from tilert_stream.parsers.hermes import HERMES

TEMPLATES = {
    "<tool_call>{{ tc.name }}<arg_key>{{ k }}</arg_key>…</think>": "glm47",
    "<｜tool▁calls▁begin｜>…</think>": "deepseek",
    '<｜DSML｜invoke name="…">': "deepseek",
    '<tool_call>\n{"name": …}\n</tool_call>…<think>': "hermes",
    "{{ content.split('</think>')[-1] }}": "think",
    "<tool_call>\n<function=…>\n</tool_call>…</think>": "think",
    "<tool_call>\n<function=…>": None,
    "<|im_start|>{{ message.content }}": None,
}


@pytest.mark.parametrize(("template", "name"), TEMPLATES.items())
def test_auto_goes_by_the_template(template: str, name: str | None) -> None:
    parser = choose_parser("auto", template)
    assert (parser and parser.name) == name


def test_auto_without_a_template() -> None:
    assert choose_parser("auto", None) is None


def test_none_reads_nothing() -> None:
    assert choose_parser("none", "</think>") is None


@pytest.mark.parametrize("name", BUILT_IN)
def test_by_name(name: str) -> None:
    parser = choose_parser(name, None)
    assert parser is not None
    assert parser.name == name
    assert parser.tools is (name != "think")
    assert "</think>" in parser.markers


def plug(monkeypatch: pytest.MonkeyPatch, *values: tuple[str, str]) -> None:
    points = EntryPoints(EntryPoint(name, value, choice.GROUP) for name, value in values)

    def entry_points(*, group: str) -> EntryPoints:
        return points.select(group=group)

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)


def test_a_plugin_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, ("mine", "tilert_stream.parsers.hermes:HERMES"))
    assert choose_parser("mine", None) is HERMES


def test_a_name_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, ("mine", "a:b"))
    with pytest.raises(ConfigError, match=r"'hermse'.*not known.*hermes, think, mine") as caught:
        choose_parser("hermse", None)
    assert caught.value.param == "output_parser"


def test_a_name_that_two_have(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, ("mine", "a:b"), ("mine", "c:d"))
    with pytest.raises(ConfigError, match="registered twice: a:b and c:d"):
        choose_parser("mine", None)


def test_a_plugin_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, ("mine", "no_such_module_here:PARSER"))
    with pytest.raises(ConfigError, match="loading no_such_module_here:PARSER failed"):
        choose_parser("mine", None)


def test_a_plugin_that_is_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, ("mine", "tilert_stream.parsers.hermes:HermesReader"))
    with pytest.raises(ConfigError, match="no output parser: it has no name, tools, writes, open"):
        choose_parser("mine", None)
