"""Plays the checks, one after the other: a target in, a report out."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from ..http.server import Server
from ..http.settings import ServerSettings
from .check import Result, Verdict
from .checks import select
from .exchange import Ending
from .judging import Failed, Skipped, evidence, printable
from .report import Report
from .session import Facts, Session
from .settings import Settings
from .target import Target
from .wire import dial

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from starlette.types import ASGIApp

    from .check import Check

__all__ = ("check_app", "check_server", "nothing")


def nothing(_result: Result) -> None:
    """A listener that does not listen."""


async def check_server(
    target: Target,
    *,
    model: str | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    settings: Settings | None = None,
    on_result: Callable[[Result], None] = nothing,
) -> Report:
    """Play the chosen checks against a server.

    :param model: the name to ask for; by default the first that ``/v1/models`` gives.
    :param only: ids or themes; none: all.
    :param skip: ids or themes.
    :param on_result: called after each check.
    :raises OSError: nobody answers at the target, in time and with a certificate to trust.
    :raises ~tilert_stream.errors.ConfigError: an id that there is not.
    """
    chosen = select(only, skip)
    settings = Settings() if settings is None else settings
    with anyio.fail_after(settings.timeout):
        async with dial(target, settings):
            pass
    facts = Facts(model=model)
    await Session(target, settings, facts).discover()
    report = Report(target.url, facts.model)
    for check in chosen:
        result = await _play(check, Session(target, settings, facts))
        report.results.append(result)
        on_result(result)
    return report


async def check_app(
    app: ASGIApp,
    *,
    api_key: str | None = None,
    model: str | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    settings: Settings | None = None,
) -> Report:
    """Serve an ASGI app on a free port of this machine, and play the checks against it.

    For tests of one's own app: ``assert not (await check_app(app)).broken()``.

    :raises ~tilert_stream.errors.ConfigError: an id that there is not.
    """
    select(only, skip)
    async with _serving(app) as (host, port):
        return await check_server(
            Target(host=host, port=port, api_key=api_key),
            model=model,
            only=only,
            skip=skip,
            settings=settings,
        )


@asynccontextmanager
async def _serving(app: ASGIApp) -> AsyncGenerator[tuple[str, int]]:
    server = Server(app, ServerSettings(port=0, access_log=False))
    async with anyio.create_task_group() as tasks:
        ((host, port),) = await tasks.start(server.serve)
        yield host, port
        server.cut()


async def _play(check: Check, session: Session) -> Result:
    started = anyio.current_time()
    verdict, shown = Verdict.PASS, ""
    lacking = _lacking(check, session.facts)
    if lacking:
        return Result(check, Verdict.SKIP, printable(lacking))
    try:
        reason = await check.play(session) or ""
    except Skipped as skipped:
        verdict, reason = Verdict.SKIP, str(skipped)
    except Failed as failed:
        verdict, reason = Verdict.FAIL, failed.reason
        exchange = failed.exchange or session.last
        shown = evidence(exchange, failed.at) if exchange is not None else ""
    except TimeoutError:
        verdict, reason = Verdict.FAIL, str(Ending.TIMEOUT)
    except OSError as error:
        verdict, reason = Verdict.FAIL, f"no connection: {error}"
    seconds = anyio.current_time() - started
    return Result(check, verdict, printable(reason), shown, seconds, session.requests)


def _lacking(check: Check, facts: Facts) -> str:
    if check.needs == "answers":
        return "; ".join(facts.missing.values()) if len(facts.missing) == 2 else ""
    return facts.missing.get(check.needs, "")
