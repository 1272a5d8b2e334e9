"""What is measured: each scenario is one load on one router, and the figures that it gives.

In: a running router. Out: figures by name. Times are microseconds; ``_p50`` and ``_p99`` are
percentiles over all tokens (or answers) of the load.
"""

from __future__ import annotations

import asyncio
import time
from statistics import quantiles
from typing import TYPE_CHECKING, Final

from bench.client import Client

from .answers import parse
from .orders import EMITTED, ITL_NS, LEFT, PREFILL_NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.client import Answer, Recording

    from .routers import RouterProcess

__all__ = ("PREFILL", "leaving", "streams", "warm_up")

Figures = dict[str, float]

PREFILL: Final = 0.02
"""Seconds that a prompt takes, but where tokens take no time: there prefill takes none either."""
CUT: Final = 20.0
"""Seconds after which a load is cut; what had not ended then is told."""
ENDLESS: Final = 3000
SETTLE: Final = 0.05


async def warm_up(router: RouterProcess) -> None:
    """Ask until an answer comes whole: routers look for their nodes first."""
    pace(router, itl=0, prefill=0)
    for _ in range(300):
        try:
            client = await Client.connect(router.port)
            client.ask(0, 3)
            await client.over
            client.transport.abort()
            if len(parse(client.recording()).tokens) == 3:
                return
        except (OSError, RuntimeError):
            pass
        await asyncio.sleep(0.1)
    raise RuntimeError(f"{router.name} gives no answer")


def pace(router: RouterProcess, *, itl: float, prefill: float) -> None:
    """Tell the mocks how long a token and a prompt take, in seconds."""
    cells = router.board.cells
    cells[ITL_NS], cells[PREFILL_NS] = round(itl * 1e9), round(prefill * 1e9)


async def streams(
    count: int, itl: float, max_tokens: int, requests: int, router: RouterProcess
) -> Figures:
    """Connections that each ask one request after another.

    :param itl: seconds from token to token, half as long to half as long again.
    :param requests: of each connection.
    """
    await _quiet(router)
    router.board.clear(count * requests)
    prefill = PREFILL if itl else 0
    pace(router, itl=itl, prefill=prefill)
    clients: list[Client] = []
    try:
        async with asyncio.timeout(CUT):
            clients += [await Client.connect(router.port) for _ in range(count)]
    except OSError:  # a time-out is one too: nobody takes connections any more
        return {"unfinished": count * requests}
    recordings: list[Recording] = []

    async def ask(place: int, client: Client) -> None:
        for number in range(place, count * requests, count):
            client.ask(number, max_tokens)
            await client.over
            recordings.append(client.recording())

    begin, cpu = time.monotonic(), router.cpu()
    tasks = [asyncio.create_task(ask(*each)) for each in enumerate(clients)]
    await asyncio.wait(tasks, timeout=CUT)
    seconds, cpu = time.monotonic() - begin, router.cpu() - cpu
    made = router.board.cells[EMITTED]
    for client in clients:
        client.transport.abort()
    await asyncio.gather(*tasks, return_exceptions=True)
    answers = [parse(recording) for recording in recordings]
    whole = [answer for answer in answers if len(answer.tokens) == max_tokens and answer.done]
    used: Figures = {"cpu_us": cpu / made / 1e3} if cpu else {}
    lost = {"unfinished": count * requests - len(whole)}
    speed = {"tokens_per_second": made / seconds}
    return used | lost | speed | (_delays(router, whole, prefill) if len(whole) > 1 else {})


def _delays(router: RouterProcess, answers: Sequence[Answer], prefill: float) -> Figures:
    first = [answer.tokens[0] - answer.asked - round(prefill * 1e9) for answer in answers]
    transits: list[int] = []
    gaps: list[int] = []
    for answer in answers:
        made = router.board.moments(answer.stream)[: len(answer.tokens)]
        # What came first was made by prefill, or was on its way before the stream's own clock.
        transits += [arrived - at for arrived, at in zip(answer.tokens[1:], made[1:], strict=True)]
        gaps.append(answer.done - made[-1])
    tokens = sum(len(answer.tokens) for answer in answers)
    return (
        _spread("first", first)
        | _spread("transit", transits)
        | _spread("gap", gaps)
        | {"tokens_per_chunk": tokens / sum(answer.chunks for answer in answers)}
    )


async def leaving(itl: float, times: int, router: RouterProcess) -> Figures:
    """A client that leaves after its first token: how long until the decode node knows.

    :param itl: seconds; a router that looks only when a token comes needs as long.
    """
    waits: list[int] = []
    for number in range(times):
        await _quiet(router)
        router.board.clear(1)
        pace(router, itl=itl, prefill=0)
        client = await Client.connect(router.port)
        client.ask(number, ENDLESS)
        await client.first
        # What the router does behind the first token is done: it waits for the next one.
        await asyncio.sleep(SETTLE)
        router.board.cells[LEFT] = 0
        left = time.monotonic_ns()
        client.transport.abort()
        while not (noticed := router.board.cells[LEFT]):  # noqa: ASYNC110 - another process's memory has no event
            await asyncio.sleep(0.002)
        waits.append(noticed - left)
    return _spread("leave", waits)


async def _quiet(router: RouterProcess) -> None:
    """Wait until the mocks make no token any more, and forget their count."""
    cells, emitted = router.board.cells, -1
    while emitted != cells[EMITTED]:
        emitted = cells[EMITTED]
        await asyncio.sleep(0.02)
    cells[EMITTED] = 0


def _spread(name: str, nanoseconds: Sequence[int]) -> Figures:
    percentiles = quantiles(nanoseconds, n=100)
    return {f"{name}_p50": percentiles[49] / 1e3, f"{name}_p99": percentiles[98] / 1e3}
