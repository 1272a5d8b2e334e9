"""The command line: a base URL in, a table out, 1 as exit code where a must has failed."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer
from rich.console import Console

from ..errors import ConfigError
from .check import Verdict
from .checks import CHECKS
from .files import to_json, to_junit
from .runner import check_server
from .settings import Settings
from .tables import checks_table, report_table
from .target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .report import Report

__all__ = ("main",)

FAILURE: Final = 1
USAGE_ERROR: Final = 2
"""Exit codes: a must failed; nothing could be checked."""

_app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
_DEFAULTS: Final = Settings()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    :param arguments: without the program's name; by default the process's own.
    :raises SystemExit: always.
    """
    _app(
        None if arguments is None else list(arguments),
        prog_name="python -m tilert_stream.conformance",
    )


@_app.command()
def _command(
    base_url: Annotated[
        str, typer.Option(help="The server, e.g. http://127.0.0.1:8000/v1.", metavar="URL")
    ] = "",
    model: Annotated[
        str | None, typer.Option(help="The model to ask; by default the first that is listed.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="The server's key.", envvar="OPENAI_API_KEY")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A check's id or a theme; may be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="A check's id or a theme; may be repeated.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the results here as JSON.", metavar="FILE")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write the results here as JUnit's XML.", metavar="FILE")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = _DEFAULTS.timeout,
    leavers: Annotated[
        int, typer.Option(help="Clients that leave, in each check of leaving.")
    ] = _DEFAULTS.leavers,
    insecure: Annotated[  # noqa: FBT002 - typer calls it by name
        bool,
        typer.Option("--insecure", help="Do not check the server's certificate.", metavar=""),
    ] = False,
    list_: Annotated[  # noqa: FBT002 - as above
        bool, typer.Option("--list", help="Print what is checked, and why.", metavar="")
    ] = False,
) -> None:
    """Check an OpenAI-compatible server from outside. Only the server that you name is asked."""
    console = Console()
    if list_:
        console.print(checks_table(CHECKS))
        return
    if not base_url:
        sys.exit(_refuse("--base-url is missing; give it as http://HOST:PORT/v1."))
    try:
        settings = Settings(timeout=timeout, leavers=leavers)
        target = Target.parse(base_url, api_key=api_key, verify=not insecure)

        async def run() -> Report:
            return await check_server(
                target, model=model, only=only or (), skip=skip or (), settings=settings
            )

        report = anyio.run(run)
    except ConfigError as error:
        sys.exit(_refuse(error.message))
    except OSError as error:
        sys.exit(_refuse(f"nobody answers at {base_url}: {error}"))
    console.print(report_table(report))
    if json is not None:
        json.write_bytes(to_json(report))
    if junit is not None:
        junit.write_bytes(to_junit(report))
    if report.count(Verdict.SKIP) == len(report.results):
        sys.exit(_refuse("every check was skipped: nothing is known about this server."))
    sys.exit(FAILURE if report.broken() else 0)


def _refuse(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201 - a command line speaks
    return USAGE_ERROR
