"""The command line, up to the call that starts the server."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Annotated

import pytest

from tilert_stream import __version__
from tilert_stream.config import Option, ServeConfig, StagePlacement
from tilert_stream.errors import ConfigError, EngineDied, StageNotFound
from tilert_stream.serve.cli import ROLES, Role, main
from tilert_stream.serve.options import OptionSpec, option_specs


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServeConfig]:
    """The configurations with which the server was started."""
    for name in [name for name in os.environ if name.startswith("TILERT_")]:
        monkeypatch.delenv(name)
    configs: list[ServeConfig] = []

    def run(config: ServeConfig) -> int:
        configs.append(config)
        return 0

    place(monkeypatch, "tilert_stream.serve.all_in_one", run)
    return configs


def place(monkeypatch: pytest.MonkeyPatch, name: str, run: object) -> None:
    module = ModuleType(name)
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_without_arguments_the_demo_model_is_served(started: list[ServeConfig]) -> None:
    assert exit_code() == 0
    assert started == [ServeConfig()]


@pytest.mark.parametrize(("given", "expected"), [(None, "false"), ("true", "true"), ("", "")])
def test_tokenizers_get_no_pool_of_threads_unless_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.setenv(name, "to be put back")
    if given is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, given)
    seen: list[str | None] = []

    def run(_: ServeConfig) -> int:
        seen.append(os.environ.get(name))
        return 0

    place(monkeypatch, "tilert_stream.serve.all_in_one", run)
    assert exit_code() == 0
    assert seen == [expected]


def test_the_exit_code_of_the_server_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: ServeConfig) -> int:
        return 70

    place(monkeypatch, "tilert_stream.serve.all_in_one", run)
    assert exit_code() == 70


def test_every_kind_of_option(started: list[ServeConfig]) -> None:
    words = (
        "--port 0 --backend=trio --queue-timeout 1.5 --no-uvloop --allow-half-close"
        " --served-model-name a --served-model-name b --api-key sk-one"
        " --stage a:A@after=detokenize --stage b@replace=stop_strings"
    )
    assert exit_code(*words.split()) == 0
    assert started == [
        ServeConfig(
            port=0,
            backend="trio",
            queue_timeout=1.5,
            uvloop=False,
            allow_half_close=True,
            served_model_names=("a", "b"),
            api_keys=("sk-one",),
            stages=(
                StagePlacement("a:A", "after", "detokenize"),
                StagePlacement("b", "replace", "stop_strings"),
            ),
        )
    ]


@pytest.mark.parametrize(
    "spec",
    [spec for spec in option_specs(ServeConfig) if spec.type is bool],
    ids=lambda spec: spec.name,
)
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_overrules_the_environment_both_ways(
    spec: OptionSpec, *, value: bool, started: list[ServeConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(spec.variable, str(not value))
    assert exit_code(spec.flag if value else spec.negative) == 0
    assert getattr(started[0], spec.name) is value


def test_the_other_side_of_a_switch_can_have_a_name_of_its_own() -> None:
    negatives = {spec.name: spec.negative for spec in option_specs(ServeConfig)}
    assert negatives["with_mtp"] == "--no-mtp"
    assert negatives["access_log"] == "--no-access-log"


def test_options_of_the_environment_reach_the_server(
    started: list[ServeConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILERT_STREAM_SLOTS", "2")
    assert exit_code() == 0
    assert started == [ServeConfig(slots=2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "http"], "error: --port is 'http'; it must be an integer from 0 to 65535.\n"),
        (["--slots", "0"], "error: --slots is '0'; it must be an integer from 1 to 4096.\n"),
        (["--config", "none.toml"], "error: the configuration file none.toml cannot be read: "),
    ],
)
def test_a_wrong_value_is_explained_in_one_line(
    arguments: list[str],
    message: str,
    started: list[ServeConfig],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(*arguments) == 2
    out, err = capsys.readouterr()
    assert (out, started) == ("", [])
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [(["--prot", "80"], "--prot"), (["--backend", "tokio"], "'tokio'"), (["rooter"], "rooter")],
)
def test_a_wrong_word_is_a_usage_error(
    arguments: list[str], wrong: str, started: list[ServeConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    assert started == []
    assert wrong in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("model is missing"), 2),
        (StageNotFound("no stage is called x"), 2),
        (EngineDied("the device is gone"), 1),
    ],
)
def test_an_error_of_the_role_has_no_traceback(
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: ServeConfig) -> int:
        raise error

    place(monkeypatch, "tilert_stream.serve.all_in_one", run)
    assert exit_code() == code
    assert capsys.readouterr().err == f"error: {error}\n"


def test_warnings_are_printed_and_the_server_starts(
    started: list[ServeConfig],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TILERT_DECODE_POLL_MS", "200")
    assert exit_code() == 0
    assert capsys.readouterr().err.startswith("warning: TILERT_DECODE_POLL_MS is set but ")
    assert len(started) == 1


def test_version(started: list[ServeConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"tilert-stream {__version__}\n"
    assert started == []


def test_help_shows_every_option_its_variable_and_its_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert exit_code("--help") == 0
    shown = capsys.readouterr().out
    for spec in option_specs(ServeConfig):
        flag = f"--no-{spec.flag[2:]}" if spec.default is True else spec.flag
        assert f"{flag} " in shown
        assert f"[{spec.variable}]" in shown
        assert f"─ {spec.option.group} ─" in shown
    assert "[default: 8000]" in shown
    assert "TILERT_STREAM_CONFIG" in shown


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoConfig:
    repeat: Annotated[int, Option("Echo", "How often.", least=1)] = 1


def test_a_role_is_chosen_by_the_first_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[EchoConfig] = []

    def run(config: EchoConfig) -> int:
        configs.append(config)
        return 3

    place(monkeypatch, "echo_role", run)
    monkeypatch.setitem(ROLES, "echo", Role(EchoConfig, "echo_role:run", "Say it again."))
    assert exit_code("echo", "--repeat", "2") == 3
    assert configs == [EchoConfig(repeat=2)]


def test_help_names_the_other_roles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ROLES, "echo", Role(EchoConfig, "echo_role:run", "Say it again."))
    assert exit_code("--help") == 0
    assert "Other roles: router, prefill, decode, echo." in capsys.readouterr().out


def test_the_command_line_imports_nothing_heavy() -> None:
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, tilert_stream.serve.cli; print(*sys.modules)",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    heavy = {"torch", "numpy", "gguf", "trio", "uvloop", "starlette", "tokenizers", "jinja2"}
    assert heavy.isdisjoint(loaded)
    assert "tilert_stream.serve.cli" in loaded


def test_option_names_are_those_of_the_fields() -> None:
    singular = {"served_model_names", "api_keys", "cors_origins", "stages"}
    assert [spec.key for spec in option_specs(ServeConfig)] == [
        field.name.removesuffix("s") if field.name in singular else field.name
        for field in fields(ServeConfig)
    ]


@pytest.mark.parametrize(("program", "offered"), [("__main__.py", False), ("tilert-stream", True)])
def test_completion_is_offered_for_a_command_only(
    program: str,
    offered: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/somewhere/{program}"])
    assert exit_code("--help") == 0
    assert ("--install-completion" in capsys.readouterr().out) is offered
