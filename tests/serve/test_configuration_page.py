"""``docs/configuration.md`` says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilert_stream.config import (
    DecodeConfig,
    Options,
    PrefillConfig,
    RouterConfig,
    ServeConfig,
    StagePlacement,
)
from tilert_stream.errors import ConfigError
from tilert_stream.serve.options import OptionSpec, option_specs
from tilert_stream.serve.settings import load_settings

PAGE = Path(__file__).parents[2].joinpath("docs", "configuration.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `--")]


ROLES_ON_THE_PAGE: dict[str, type[Options]] = {
    "(none)": ServeConfig,
    "`router`": RouterConfig,
    "`prefill`": PrefillConfig,
    "`decode`": DecodeConfig,
}
ROLES = (ServeConfig, RouterConfig, PrefillConfig, DecodeConfig)
SPECS = {spec.name: spec for role in reversed(ROLES) for spec in option_specs(role)}
"""Every option of every role, as the first role that has it says it."""


def default_in_words(spec: OptionSpec) -> str:
    if spec.option.default is not None:
        return spec.option.default
    if isinstance(spec.default, bool):
        return "on" if spec.default else "off"
    return "none" if spec.default is None else str(spec.default).removesuffix(".0")


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_every_option_has_its_row_in_its_group(spec: OptionSpec) -> None:
    flag = f"--no-{spec.flag[2:]}" if spec.default is True else spec.flag
    (row,) = (row for row in ROWS if re.match(rf"\| `{flag}[ `]", row))
    _, usage, default, text, _ = re.split(r"(?<!\\)\|", row)
    assert default.strip() == default_in_words(spec)
    assert text.strip().removesuffix(" Repeatable.") == spec.option.help
    assert text.strip().endswith("Repeatable.") is spec.repeated
    assert all(choice in usage for choice in spec.choices)
    before = PAGE[: PAGE.index(row)]
    assert before.rindex(f"\n### {spec.option.group}\n") == before.rindex("\n### ")


def test_the_page_has_no_option_that_there_is_not() -> None:
    assert len(ROWS) == len(SPECS)


def test_the_file_on_the_page_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n", encoding="utf-8")
    file = tmp_path / "server.toml"
    file.write_text(text.replace("/run/secrets/keys", str(keys)), encoding="utf-8")
    assert load_settings(ServeConfig, {"config": str(file)}, {}).config == ServeConfig(
        host="::",
        port=9000,
        model="/models/smollm2-1.7b.gguf",
        served_model_names=("small", "default"),
        api_key_file=keys,
        api_keys=("sk-one",),
        slots=8,
        stages=(StagePlacement("shop.moderation:Moderate", "after", "detokenize"),),
    )


def test_the_errors_on_the_page_are_those_that_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("server.toml").write_text("prot = 80", encoding="utf-8")
    with pytest.raises(ConfigError) as in_file:
        load_settings(ServeConfig, {"config": "server.toml"}, {})
    with pytest.raises(ConfigError) as in_environment:
        load_settings(ServeConfig, {}, {"TILERT_STREAM_PORT": "http"})
    assert f"\nerror: {in_file.value}\n" in PAGE
    assert f"\nerror: {in_environment.value}\n" in PAGE


@pytest.mark.parametrize(("name", "role"), list(ROLES_ON_THE_PAGE.items()))
def test_the_page_says_which_groups_each_role_has(name: str, role: type[Options]) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {name} |"))
    groups = {spec.option.group for spec in option_specs(role)}
    assert set(row.split("|")[2].strip().split(", ")) == groups
