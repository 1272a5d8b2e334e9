"""What the supervisor's tests run in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection

import anyio
from starlette.types import Receive, Scope, Send

from tilert_stream.http import Server, ServerSettings, run_until_signalled
from tilert_stream.http.supervisor import Supervisor


async def who_am_i(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the process id; ``/stay`` never ends."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = str(os.getpid()).encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if scope["path"] == "/stay":
        await anyio.sleep_forever()
    await send({"type": "http.response.body"})


def work(settings: ServerSettings, ready: Callable[[], None]) -> int:
    async def serve() -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(run_until_signalled, Server(who_am_i, settings))
            ready()

    anyio.run(serve)
    return 0


def fail(_settings: ServerSettings, _ready: Callable[[], None]) -> int:
    return 7


def supervise(
    target: Callable[[ServerSettings, Callable[[], None]], int],
    settings: ServerSettings,
    reports: Connection[tuple[int, list[int]], None],
) -> None:
    """Run a supervisor of two; report the port and the workers' ids each time all are ready."""
    supervisor = Supervisor(
        target, settings, 2, on_ready=lambda port, pids: reports.send((port, pids))
    )
    raise SystemExit(supervisor.serve())
