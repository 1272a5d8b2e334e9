"""What is checked before a model is loaded."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilert_stream.config import ServeConfig, StagePlacement
from tilert_stream.errors import ConfigError, StageNotFound
from tilert_stream.events import PLAIN_CAPABILITIES
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.parsers.hermes import HERMES
from tilert_stream.serve import all_in_one
from tilert_stream.serve.all_in_one import run
from tilert_stream.serve.request_options import choose_output, reasoning_fields


def test_trio_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(ConfigError, match=r"pip install 'tilert-stream\[trio\]'") as caught:
        run(ServeConfig(engine="scripted", backend="trio"))
    assert caught.value.param == "backend"


def test_a_wrong_stage_is_told_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_model(_config: ServeConfig) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(all_in_one, "load_model", load_model)
    config = ServeConfig(stages=(StagePlacement("no_such_stage", "after", "detokenize"),))
    with pytest.raises(StageNotFound, match="no_such_stage"):
        all_in_one.build_app(config)


def test_more_workers_than_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="decode slots belong to one process") as caught:
        run(ServeConfig(engine="scripted", workers=2))
    assert caught.value.param == "workers"


def test_a_key_without_its_certificate_is_told_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(all_in_one, "load_model", None)
    with pytest.raises(ConfigError, match="ssl_certfile"):
        run(ServeConfig(ssl_keyfile=Path("key.pem")))


@pytest.mark.parametrize(
    ("name", "stage"),
    [("auto", False), ("none", False), ("think", True), ("hermes", True)],
)
def test_the_output_parser_is_the_pipeline_s_last_stage(name: str, stage: bool) -> None:
    """The scripted model's template knows no tools: to serve them would ignore them silently."""
    app = all_in_one.build_app(ServeConfig(engine="scripted", output_parser=name))
    assert app.card.capabilities == PLAIN_CAPABILITIES
    assert ("parse" in str(app.service.pipeline)) is stage


def test_a_wrong_output_parser_is_told_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(all_in_one, "load_model", None)
    with pytest.raises(ConfigError, match="not known"):
        all_in_one.build_app(ServeConfig(output_parser="no_such_parser"))


def test_a_wrong_name_of_reasoning() -> None:
    with pytest.raises(ConfigError, match="both, reasoning_content, reasoning") as caught:
        ServeConfig(reasoning_field="thoughts")
    assert caught.value.param == "reasoning_field"


def test_tools_are_served_where_parser_and_template_know_them() -> None:
    card = all_in_one.build_app(ServeConfig(engine="scripted")).card
    knows = ChatTemplate("{{ tools }}<tool_call>{{ messages }}")
    parser, capable = choose_output(ServeConfig(), replace(card, chat_template=knows))
    assert parser is HERMES
    assert capable.capabilities == PLAIN_CAPABILITIES | {"tools"}
    assert reasoning_fields(ServeConfig()) == ("reasoning_content", "reasoning")
    assert reasoning_fields(ServeConfig(reasoning_field="reasoning")) == ("reasoning",)
