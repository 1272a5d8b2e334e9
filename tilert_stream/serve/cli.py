"""The command line: arguments in, a role started, its exit code out.

A role is a configuration class and the function that runs it. Its options are generated from the
class, so that none can be missing. The first argument may name a role; without a name it is the
all-in-one server. Only the chosen role's module is imported, and only once its options are right,
so that ``--help`` and mistakes answer at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import typer

from tilert_stream import __version__
from tilert_stream.config import (
    DecodeConfig,
    PrefillConfig,
    RouterConfig,
    ServeConfig,
    StagePlacement,
)
from tilert_stream.errors import ConfigError, PipelineError, TilertStreamError

from .options import option_specs
from .settings import CONFIG_VARIABLE, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .options import OptionSpec

__all__ = ("DEFAULT_ROLE", "ROLES", "Role", "main")

FAILURE: Final = 1
USAGE_ERROR: Final = 2
"""Exit codes, as of every Unix command: what was asked failed; it was asked wrongly."""


@dataclass(frozen=True, slots=True)
class Role:
    """One way to run the server."""

    config: type[Any]
    """A dataclass whose fields are the role's options."""
    run: str
    """``"module:function"``: takes the configuration, returns the exit code."""
    help: str


ROLES: Final[dict[str, Role]] = {
    "all-in-one": Role(
        ServeConfig,
        "tilert_stream.serve.all_in_one:run",
        "Serve a model behind an OpenAI-compatible API, all in this process.",
    ),
    "router": Role(
        RouterConfig,
        "tilert_stream.serve.router:run",
        "Serve an OpenAI-compatible API whose prefill and decode run on other nodes.",
    ),
    "prefill": Role(
        PrefillConfig,
        "tilert_stream.serve.prefill:run",
        "Compute prompts for routers, and hand their KV caches over to decode nodes.",
    ),
    "decode": Role(
        DecodeConfig,
        "tilert_stream.serve.decode:run",
        "Take KV caches in from prefill nodes, and decode for routers.",
    ),
}
DEFAULT_ROLE: Final = "all-in-one"

_METAVARS: Final[dict[type, str]] = {
    str: "TEXT",
    int: "INTEGER",
    float: "NUMBER",
    Path: "FILE",
    StagePlacement: "STAGE",
}


_NO: Final = "no_"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    :param arguments: without the program's name; by default the process's own.
    :raises SystemExit: always.
    """
    _open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given.pop(0) if given and given[0] in ROLES else DEFAULT_ROLE
    program = _program() if name == DEFAULT_ROLE else f"{_program()} {name}"
    _command(ROLES[name])(given, prog_name=program)


def _open_standard_streams() -> None:
    """Keep the numbers 0 to 2 from sockets: uvloop aborts when it closes one of them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _program() -> str:
    return "python -m tilert_stream.serve" if _run_as_module() else Path(sys.argv[0]).name


def _run_as_module() -> bool:
    return Path(sys.argv[0]).name == "__main__.py"


def _command(role: Role) -> typer.Typer:
    app = typer.Typer(
        pretty_exceptions_enable=False,  # Typer's own tracebacks print local variables, keys too
        rich_markup_mode="rich",
        add_completion=not _run_as_module(),  # a shell completes a command, not `python -m`
    )
    others = ", ".join(name for name in ROLES if name != DEFAULT_ROLE)
    app.command(help=role.help, epilog=f"Other roles: {others}." if others else None)(
        _callback(role)
    )
    return app


def _callback(role: Role) -> Callable[..., None]:
    specs = option_specs(role.config)

    def command(**arguments: object) -> None:
        sys.exit(_run(role, _without_negatives(specs, arguments)))

    # Typer reads options off a function's signature.
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            *(parameter for spec in specs for parameter in _parameters(spec)),
            _keyword("config", str | None, _config_option()),
            _keyword("version", bool, _version_option()),
        ]
    )
    return command


def _keyword(name: str, annotation: object, option: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _parameters(spec: OptionSpec) -> list[Parameter]:
    if spec.type is bool:
        return _switch(spec)
    # Values are read by the spec, so that an option is the same wherever it is given; typer is told
    # of choices for its help and its completion.
    kind: Any = spec.hint if spec.choices else str
    option = typer.Option(
        None,
        spec.flag,
        help=_help(spec),
        rich_help_panel=spec.option.group,
        show_default=False,
        metavar=None if spec.choices else _METAVARS[spec.type],
    )
    return [_keyword(spec.name, (list[kind] if spec.repeated else kind) | None, option)]


def _switch(spec: OptionSpec) -> list[Parameter]:
    # Only the side that changes the default is shown; the other is for overruling a file. Where the
    # default is neither, both change it.
    made: list[Parameter] = []
    for negative in (False, True):
        option = typer.Option(
            None,
            spec.negative if negative else spec.flag,
            help=_help(spec),
            rich_help_panel=spec.option.group,
            show_default=False,
            metavar="",
            hidden=spec.default is not None and negative is not spec.default,
        )
        made.append(_keyword(_NO + spec.name if negative else spec.name, bool | None, option))
    return made


def _without_negatives(
    specs: Sequence[OptionSpec], arguments: Mapping[str, object]
) -> dict[str, object]:
    given = {name: value for name, value in arguments.items() if not name.startswith(_NO)}
    for spec in specs:
        if arguments.get(_NO + spec.name):
            given[spec.name] = False
    return given


def _help(spec: OptionSpec) -> str:
    return f"{spec.option.help} {_dim(f'default: {_default(spec)}')} {_dim(spec.variable)}"


def _dim(text: str) -> str:
    # A bracket would be read as markup.
    return f"[dim]\\[{text}][/dim]"


def _default(spec: OptionSpec) -> str:
    if spec.option.default is not None:
        return spec.option.default
    if isinstance(spec.default, bool):
        return "on" if spec.default else "off"
    if isinstance(spec.default, float):
        return f"{spec.default:g}"
    return "none" if spec.default is None else f"{spec.default}"


def _config_option() -> object:
    return typer.Option(
        None,
        "--config",
        help=f"TOML file of options, named without the dashes in front. {_dim(CONFIG_VARIABLE)}",
        metavar="FILE",
    )


def _version_option() -> object:
    return typer.Option(
        False,  # noqa: FBT003 - the default, in typer's own order
        "--version",
        help="Print the version and exit.",
        is_eager=True,
        callback=_print_version,
        metavar="",
    )


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        typer.echo(f"tilert-stream {__version__}")
        raise typer.Exit


def _run(role: Role, arguments: dict[str, object]) -> int:
    # Prompts are tokenized one at a time: handing each to a pool of threads, as the library does
    # otherwise, costs more than a short one takes.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        settings = load_settings(role.config, arguments, os.environ)
        for warning in settings.warnings:
            typer.echo(f"warning: {warning}", err=True)
        module, _, function = role.run.partition(":")
        run = cast("Callable[[object], int]", getattr(importlib.import_module(module), function))
        return run(settings.config)
    except TilertStreamError as error:
        typer.echo(f"error: {error.message}", err=True)
        return USAGE_ERROR if isinstance(error, ConfigError | PipelineError) else FAILURE
