"""Clients that leave: the server notices, frees what they held, and serves the next one.

Each check leaves several times and then asks once more. What a server holds beyond that shows in
its gauge of running requests, where ``/metrics`` has one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ..check import Severity, Theme
from ..exchange import Leave, Request
from ..judging import require, skip

if TYPE_CHECKING:
    from ..session import Session

__all__ = ("DISCONNECT",)

DISCONNECT: Final = Theme("disconnect")
LONG: Final = 400
"""Tokens of the answers that are left."""
_RUNNING: Final = re.compile(
    rb"^[\w:]*(?:num_requests_running|num_running_reqs|requests_running|inflight_requests)"
    rb"(?:\{[^}]*\})? +([0-9.e+]+)",
    re.MULTILINE,
)
_WHY: Final = "a request that goes on for nobody holds a slot: all others wait, or get 429"


async def _leave_often(session: Session, leave: Leave, *, stream: bool = True) -> None:
    for _ in range(session.settings.leavers):
        question = session.question(stream=stream, max_tokens=LONG, ignore_eos=True)
        exchange = await session.send(question, leave)
        if leave.after == "event":
            require(exchange.status == 200, f"status {exchange.status} in between", exchange)
    await session.ask(max_tokens=2)


@DISCONNECT.check(
    "stream",
    Severity.MUST,
    "after clients that close their connection during a stream, the next request is answered",
    _WHY,
)
async def _stream(session: Session) -> None:
    await _leave_often(session, Leave(after="event"))


@DISCONNECT.check(
    "reset",
    Severity.MUST,
    "the same where the connection is reset",
    "an RST is an error in the server's write or read: it must not end in a traceback and a leak",
)
async def _reset(session: Session) -> None:
    await _leave_often(session, Leave(after="event", reset=True))


@DISCONNECT.check(
    "before-answer",
    Severity.MUST,
    "the same where they leave as soon as they have asked, streamed and not",
    "while a handler waits for its engine, often nobody listens for the client",
)
async def _before(session: Session) -> None:
    await _leave_often(session, Leave(after="request"))
    await _leave_often(session, Leave(after="request"), stream=False)


@DISCONNECT.check(
    "half-body",
    Severity.MUST,
    "the same where they leave in the middle of their request",
    "a handler that waits for the rest of the body for ever holds its place",
)
async def _half_body(session: Session) -> None:
    await _leave_often(session, Leave(after="half-body"))


@DISCONNECT.check(
    "neighbour",
    Severity.MUST,
    "a client that does not read its stream keeps nobody from being answered",
    "one queue for all, or a write that blocks the loop, stops every stream",
)
async def _neighbour(session: Session) -> None:
    question = session.question(stream=True, max_tokens=LONG)
    async with session.connection() as wire:
        await wire.exchange(question, Leave(after="request"))
        await session.ask(max_tokens=2)


@DISCONNECT.check(
    "gauge",
    Severity.SHOULD,
    "when clients have left, the gauge of running requests in /metrics goes back to what it was",
    _WHY,
)
async def _gauge(session: Session) -> None:
    before = await _running(session)
    if before is None:
        skip("/metrics has no gauge of running requests")
    await _leave_often(session, Leave(after="event"))
    after = await _running(session)
    grown = after is not None and after > before
    require(not grown, f"{before:g} were running, and now {after or 0:g}", session.last)


async def _running(session: Session) -> float | None:
    exchange = await session.send(Request(path="/metrics", method="GET"))
    found = [float(value) for value in _RUNNING.findall(exchange.body)]
    return sum(found) if found and exchange.status == 200 else None
