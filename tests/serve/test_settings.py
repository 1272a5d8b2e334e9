"""Every option from each place, and which place wins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilert_stream.config import ServeConfig, StagePlacement
from tilert_stream.errors import ConfigError
from tilert_stream.serve.options import OptionSpec, option_specs
from tilert_stream.serve.settings import load_settings

SPECS = {spec.name: spec for spec in option_specs(ServeConfig)}

OTHER: dict[str, tuple[str, Any]] = {
    "host": ("::", "::"),
    "port": ("9000", 9000),
    "uds": ("a.sock", "a.sock"),
    "backend": ("trio", "trio"),
    "uvloop": ("false", False),
    "model": ("models/small.gguf", "models/small.gguf"),
    "served_model_names": ("small", ("small",)),
    "engine": ("scripted", "scripted"),
    "slots": ("7", 7),
    "max_seq_len": ("512", 512),
    "ar_steps": ("3", 3),
    "threads": ("2", 2),
    "device": ("cuda:1", "cuda:1"),
    "dtype": ("bfloat16", "bfloat16"),
    "with_mtp": ("false", False),
    "kv_cache_dtype": ("bf16", "bf16"),
    "queue_timeout": ("1.5", 1.5),
    "max_queue": ("0", 0),
    "prefill_timeout": ("6", 6.0),
    "kv_timeout": ("7.5", 7.5),
    "first_token_timeout": ("8", 8.0),
    "inter_token_timeout": ("inf", float("inf")),
    "total_timeout": ("9", 9.0),
    "max_body_bytes": ("1000", 1000),
    "workers": ("2", 2),
    "ssl_certfile": ("server.pem", Path("server.pem")),
    "ssl_keyfile": ("key.pem", Path("key.pem")),
    "max_header_bytes": ("2000", 2000),
    "max_connections": ("100", 100),
    "header_timeout": ("3", 3.0),
    "body_timeout": ("4", 4.0),
    "drain_delay": ("5.5", 5.5),
    "drain_timeout": ("inf", float("inf")),
    "api_keys": ("sk-one", ("sk-one",)),
    "api_key_file": ("keys", Path("keys")),
    "keep_alive_timeout": ("5", 5.0),
    "write_stall_timeout": ("2.5", 2.5),
    "allow_half_close": ("true", True),
    "coalesce_ms": ("4", 4.0),
    "cors_origins": ("https://chat.example", ("https://chat.example",)),
    "heartbeat": ("15", 15.0),
    "done_after_error": ("true", True),
    "log_level": ("debug", "debug"),
    "access_log": ("false", False),
    "request_log": ("requests.jsonl", "requests.jsonl"),
    "metrics_aliases": ("vllm", "vllm"),
    "stages": (
        "shop.moderation:Moderate@after=detokenize",
        (StagePlacement("shop.moderation:Moderate", "after", "detokenize"),),
    ),
    "output_parser": ("hermes", "hermes"),
    "reasoning_field": ("reasoning", "reasoning"),
    "print_pipeline": ("true", True),
}
"""For each option a text, and the value it stands for, which is not the default."""


@pytest.fixture(autouse=True)
def _folder_with_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").write_text("# staff\nsk-two\n\n  sk-three  \n", encoding="utf-8")


def expected(name: str) -> ServeConfig:
    keys = ("sk-two", "sk-three") if name == "api_key_file" else ServeConfig().api_keys
    return replace(ServeConfig(api_keys=keys), **{name: OTHER[name][1]})


def argument(spec: OptionSpec, text: str) -> object:
    """What typer gives for ``text``."""
    if spec.type is bool:
        return text == "true"
    return [text] if spec.repeated else text


def toml(spec: OptionSpec, text: str) -> str:
    bare = spec.type in (int, float, bool)
    return f"{spec.key} = {text if bare else repr(text)}\n"


def from_file(text: str) -> ServeConfig:
    Path("server.toml").write_text(text, encoding="utf-8")
    return load_settings(ServeConfig, {"config": "server.toml"}, {}).config


def test_the_table_of_values_has_every_option_and_no_default() -> None:
    assert OTHER.keys() == SPECS.keys()
    for name, (_, value) in OTHER.items():
        assert value != getattr(ServeConfig(), name)


@pytest.mark.parametrize("name", SPECS)
def test_an_option_comes_from_the_command_line(name: str) -> None:
    given = {name: argument(SPECS[name], OTHER[name][0])}
    assert load_settings(ServeConfig, given, {}).config == expected(name)


@pytest.mark.parametrize("name", SPECS)
def test_an_option_comes_from_the_environment(name: str) -> None:
    environ = {SPECS[name].variable: OTHER[name][0]}
    settings = load_settings(ServeConfig, {}, environ)
    assert settings.config == expected(name)
    assert settings.warnings == ()


@pytest.mark.parametrize("name", SPECS)
def test_an_option_comes_from_the_file(name: str) -> None:
    assert from_file(toml(SPECS[name], OTHER[name][0])) == expected(name)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("in_environment", [False, True])
@pytest.mark.parametrize("on_command_line", [False, True])
@pytest.mark.parametrize(
    ("name", "texts", "values"),
    [
        ("port", ("1", "2", "3"), (1, 2, 3)),
        ("access_log", ("true", "false", "true"), (True, False, True)),
        ("access_log", ("false", "true", "false"), (False, True, False)),
        ("served_model_names", ("a", "b,c", "d"), (("a",), ("b", "c"), ("d",))),
    ],
)
def test_command_line_beats_environment_beats_file_beats_default(
    name: str,
    texts: tuple[str, str, str],
    values: tuple[object, object, object],
    *,
    on_command_line: bool,
    in_environment: bool,
    in_file: bool,
) -> None:
    spec = SPECS[name]
    arguments: dict[str, object] = {}
    environ: dict[str, str] = {}
    winner: object = getattr(ServeConfig(), name)
    if in_file:
        Path("server.toml").write_text(toml(spec, texts[2]), encoding="utf-8")
        environ["TILERT_STREAM_CONFIG"] = "server.toml"
        winner = values[2]
    if in_environment:
        environ[spec.variable] = texts[1]
        winner = values[1]
    if on_command_line:
        arguments[name] = argument(spec, texts[0])
        winner = values[0]
    config = load_settings(ServeConfig, arguments, environ).config
    assert getattr(config, name) == winner


def test_the_file_named_on_the_command_line_beats_the_one_in_the_environment() -> None:
    Path("a.toml").write_text("port = 1", encoding="utf-8")
    Path("b.toml").write_text("port = 2", encoding="utf-8")
    environ = {"TILERT_STREAM_CONFIG": "b.toml"}
    assert load_settings(ServeConfig, {"config": "a.toml"}, environ).config.port == 1


def test_an_empty_variable_counts_as_absent() -> None:
    environ = {"TILERT_STREAM_PORT": "", "TILERT_STREAM_API_KEY": ""}
    assert load_settings(ServeConfig, {}, environ).config == ServeConfig()


def test_keys_of_the_key_file_come_after_those_given_otherwise() -> None:
    environ = {"TILERT_STREAM_API_KEY": "sk-one", "TILERT_STREAM_API_KEY_FILE": "keys"}
    config = load_settings(ServeConfig, {}, environ).config
    assert config.api_keys == ("sk-one", "sk-two", "sk-three")


@pytest.mark.parametrize("content", [b"", b"# nobody yet\n\n", b"sk-\xff"])
def test_a_key_file_without_a_readable_key_opens_no_server(content: bytes) -> None:
    Path("keys").write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"the key file keys (holds no key|is no UTF-8)"
    ) as raised:
        load_settings(ServeConfig, {"api_key_file": "keys"}, {})
    assert "xff" not in str(raised.value)


def test_stages_as_tables_keep_their_order() -> None:
    config = from_file(
        """
        [[stages]]
        use = "a:A"
        after = "detokenize"
        [[stages]]
        use = "b"
        before = "encode"
        [[stages]]
        use = "c:C"
        replace = "stop_strings"
        """
    )
    assert config.stages == (
        StagePlacement("a:A", "after", "detokenize"),
        StagePlacement("b", "before", "encode"),
        StagePlacement("c:C", "replace", "stop_strings"),
    )


def test_keys_of_the_file_may_have_dashes_and_lists() -> None:
    config = from_file('served-model-name = ["a", "b"]\nwrite-stall-timeout = 5')
    assert (config.served_model_names, config.write_stall_timeout) == (("a", "b"), 5.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = '80'", "port in server.toml is '80'; it must be an integer from 0 to 65535."),
        ("port = 1.5", "port in server.toml is 1.5; it must be an integer from 0 to 65535."),
        ("port = true", "port in server.toml is True; it must be an integer from 0 to 65535."),
        ("port = 70000", "port in server.toml is 70000; it must be an integer from 0 to 65535."),
        ("slots = 0", "slots in server.toml is 0; it must be an integer from 1 to 4096."),
        ("host = 1", "host in server.toml is 1; it must be text."),
        ("host = ''", "host in server.toml is ''; it must be text."),
        ("host = ['a']", "host in server.toml is ['a']; it must be text."),
        ("uvloop = 1", "uvloop in server.toml is 1; it must be true or false."),
        ("uvloop = 'yes'", "uvloop in server.toml is 'yes'; it must be true or false."),
        (
            "queue-timeout = nan",
            "queue-timeout in server.toml is nan; it must be a number of 0 or more.",
        ),
        (
            "backend = 'tokio'",
            "backend in server.toml is 'tokio'; it must be one of asyncio, trio.",
        ),
        (
            "stage = 'a:A'",
            "stage in server.toml is 'a:A'; it must be of the form module:attr@after=STAGE"
            " (or @before=, @replace=).",
        ),
        ("prot = 80", "prot in server.toml is no option; did you mean port?"),
        (
            "port = 1\nPORT = 2",
            "PORT in server.toml is no option; it must be one of ",
        ),
        (
            "api_key = 'a'\napi-keys = 'b'",
            "api_key stands twice in server.toml, the second time as api-keys; keep one.",
        ),
        (
            "[engine_]\nslots = 1",
            "[engine_] in server.toml is a table; options stand at the top of the file:"
            " did you mean engine?",
        ),
        ("port = ", "the configuration file server.toml is no TOML: "),
        ("port = 1\nport = 2", "the configuration file server.toml is no TOML: "),
    ],
)
def test_a_wrong_file_is_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_file(text)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "table",
    [
        'use = "a:A"',
        'after = "detokenize"',
        'use = "a:A"\nafter = "x"\nbefore = "y"',
        'use = "a:A"\nafter = 1',
        'use = ""\nafter = "x"',
        'use = "a:A"\nafter = "x"\nname = "n"',
    ],
)
def test_a_wrong_stage_table_is_explained(table: str) -> None:
    with pytest.raises(ConfigError, match=r"stages in server\.toml has .*; each needs use = "):
        from_file(f"[[stages]]\n{table}")


def test_a_file_that_is_missing_or_no_text_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"file none\.toml cannot be read: No such file"):
        load_settings(ServeConfig, {"config": "none.toml"}, {})
    Path("server.toml").write_bytes(b"host = '\xff'")
    with pytest.raises(ConfigError, match=r"file server\.toml is no TOML: "):
        load_settings(ServeConfig, {"config": "server.toml"}, {})


@pytest.mark.parametrize(
    ("variable", "text", "needed"),
    [
        ("TILERT_STREAM_PORT", "http", "an integer from 0 to 65535"),
        ("TILERT_STREAM_PORT", "9" * 5000, "an integer from 0 to 65535"),
        ("TILERT_STREAM_ACCESS_LOG", "perhaps", "true or false"),
        ("TILERT_STREAM_DTYPE", "int4", "one of auto, float32, bfloat16, float16"),
        ("TILERT_STREAM_QUEUE_TIMEOUT", "-1", "a number of 0 or more"),
        ("TILERT_STREAM_STAGE", "a:A@into=b", "of the form module:attr@after=STAGE"),
    ],
)
def test_a_wrong_variable_is_explained(variable: str, text: str, needed: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(ServeConfig, {}, {variable: text})
    assert str(raised.value).startswith(f"{variable} is {text!r}; it must be {needed}")


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_words_for_true(text: str) -> None:
    config = load_settings(ServeConfig, {}, {"TILERT_STREAM_DONE_AFTER_ERROR": text}).config
    assert config.done_after_error is True


@pytest.mark.parametrize("text", ["0", "False", "no", "OFF"])
def test_words_for_false(text: str) -> None:
    config = load_settings(ServeConfig, {}, {"TILERT_STREAM_ACCESS_LOG": text}).config
    assert config.access_log is False


def test_a_variable_that_is_no_option_is_warned_of() -> None:
    environ = {"TILERT_STREAM_PROT": "1", "TILERT_STREAM_CACHE": "/c", "OTHER": "1"}
    assert load_settings(ServeConfig, {}, environ).warnings == (
        "TILERT_STREAM_PROT is set but is no option; did you mean TILERT_STREAM_PORT?",
    )


def test_the_poll_interval_of_tilert_has_no_successor() -> None:
    (warning,) = load_settings(ServeConfig, {}, {"TILERT_DECODE_POLL_MS": "200"}).warnings
    assert warning.startswith("TILERT_DECODE_POLL_MS is set but has no successor")


@pytest.mark.parametrize(
    "text", ["api_key = 5", "api_keys = [['sk-secret']]", "api_kye = 'sk-secret'"]
)
def test_pd_25_keys_are_never_printed(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_file(text)
    assert "sk-secret" not in str(raised.value)
    assert "5" not in str(raised.value)


def test_a_configuration_does_not_print_its_keys() -> None:
    assert "sk-secret" not in repr(ServeConfig(api_keys=("sk-secret",)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", -1), ("port", 65536), ("slots", 0), ("queue_timeout", float("nan"))],
)
def test_a_configuration_made_in_code_is_checked_too(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is {value}; it must be a number ") as raised:
        replace(ServeConfig(), **{name: value})
    assert raised.value.param == name
