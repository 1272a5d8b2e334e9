"""What is measured: each scenario is one load on one server, and the figures that it gives.

In: a running server. Out: figures by name. Times are microseconds; ``_p50`` and ``_p99`` are
percentiles over all tokens (or answers) of the load.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from statistics import quantiles
from typing import TYPE_CHECKING, Final

from .board import EMITTED, OPENED, TOKENS
from .client import HEALTH, Client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from .client import Answer, Recording
    from .server import ServerProcess

__all__ = ("busy", "ends", "first_tokens", "flood", "idle", "loop_lag", "running", "stalled_reader")

Figures = dict[str, float]

TURN: Final = 0.0003
"""Seconds of one turn of the engine; a turn serves one stream, then comes the next one's."""
ENDLESS: Final = 60_000
"""Tokens asked for where the load generator ends a stream by leaving."""
WARM_UP: Final = 0.1


async def busy(streams: int, chain: int, seconds: float, server: ServerProcess) -> Figures:
    """Streams that run steadily: CPU time a token, and the transit of every token."""
    async with running(server, streams, chain=chain) as clients:
        used = await _measure(server, seconds)
    answers = [client.recording().parse() for client in clients]
    return used | _chunks(answers) | _spread("transit", _transits(server, answers))


async def flood(streams: int, seconds: float, server: ServerProcess) -> Figures:
    """An engine that takes no time: what the server can carry, and how it merges."""
    async with running(server, streams, chain=1, turn=0) as clients:
        used = await _measure(server, seconds)
    return used | _chunks([client.recording().parse() for client in clients])


async def first_tokens(requests: int, server: ServerProcess) -> Figures:
    """One request at a time, prefill in no time: from the request to its first token."""
    server.board.clear(requests)
    server.board.pace(chain=1, seconds=TURN)
    client = await Client.connect(server.port)
    answers = await _ask_in_turn(client, [(stream, 3) for stream in range(requests)])
    client.transport.abort()
    return _spread("first", [answer.tokens[0] - answer.asked for answer in answers])


async def ends(connections: int, requests: int, server: ServerProcess) -> Figures:
    """Streams that end all the time: from the last token's making to ``[DONE]`` at the client."""
    server.board.clear(connections * requests)
    server.board.pace(chain=1, seconds=TURN)
    clients = [await Client.connect(server.port) for _ in range(connections)]
    orders = [
        [(place * requests + n, 12 + (5 * place + 7 * n) % 16) for n in range(requests)]
        for place in range(connections)
    ]
    answered = await asyncio.gather(*map(_ask_in_turn, clients, orders))
    for client in clients:
        client.transport.abort()
    gaps = [
        answer.done - server.board.moments(answer.stream)[len(answer.tokens) - 1]
        for answers in answered
        for answer in answers
    ]
    return _spread("gap", gaps)


async def loop_lag(streams: int, seconds: float, server: ServerProcess) -> Figures:
    """How long a small request beside busy streams waits for the loop: ``GET /health``."""
    async with running(server, streams, chain=1):
        client = await Client.connect(server.port)
        waits: list[int] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            asked = time.monotonic_ns()
            client.send(HEALTH)
            await client.over
            waits.append(time.monotonic_ns() - asked)
            await asyncio.sleep(0.005)
        client.transport.abort()
    return _spread("lag", waits)


async def stalled_reader(streams: int, seconds: float, server: ServerProcess) -> Figures:
    """Beside a client that has stopped reading, with its connection full: what the others get."""
    server.board.clear(streams + 1)
    server.board.pace(chain=1, seconds=0)
    stalled = await Client.connect(server.port, receive_buffer=4096)
    stalled.ask(streams, ENDLESS)
    stalled.transport.pause_reading()
    # Some 200 bytes a token: more than the kernel's buffers take, which are 4 MB at most.
    await _reached(server, EMITTED, ENDLESS // 2)
    async with running(server, streams, chain=1, clear=False) as clients:
        used = await _measure(server, seconds)
    stalled.transport.abort()
    await _quiet(server)
    answers = [client.recording().parse() for client in clients]
    # Of each round of the engine's turns one is the stalled stream's.
    share = (streams + 1) / streams
    return {"loop_us": used["loop_us"] * share} | _spread("transit", _transits(server, answers))


async def idle(streams: int, seconds: float, server: ServerProcess) -> Figures:
    """Streams that are open and get no token: memory of each, and wake-ups of all.

    The engine holds after this; the server is of no further use.
    """
    await ends(8, 8, server)
    await _quiet(server)
    before = server.private_bytes()
    server.board.clear(streams)
    server.board.pace(chain=1, seconds=TURN, hold=streams)
    clients = [await Client.connect(server.port) for _ in range(streams)]
    for stream, client in enumerate(clients):
        client.ask(stream, ENDLESS)
    await asyncio.gather(*(client.first for client in clients))
    await _reached(server, OPENED, streams)
    await asyncio.sleep(0.5)
    held = server.private_bytes() - before
    sleeps = server.sleeps()
    await asyncio.sleep(seconds)
    wakes = server.sleeps() - sleeps
    for client in clients:
        client.transport.abort()
    return {"bytes": held / streams, "wakes": wakes / seconds}


@asynccontextmanager
async def running(
    server: ServerProcess, streams: int, *, chain: int, turn: float = TURN, clear: bool = True
) -> AsyncGenerator[Sequence[Client]]:
    """Open streams that have all had their first token; they are left at the end."""
    if clear:
        server.board.clear(streams)
    server.board.pace(chain=chain, seconds=turn)
    clients = [await Client.connect(server.port) for _ in range(streams)]
    for stream, client in enumerate(clients):
        client.ask(stream, ENDLESS)
    await asyncio.gather(*(client.first for client in clients))
    await asyncio.sleep(WARM_UP)
    yield clients
    for client in clients:
        client.transport.abort()
    if clear:
        await _quiet(server)


async def _measure(server: ServerProcess, seconds: float) -> Figures:
    before = server.usage()
    await asyncio.sleep(seconds)
    used = server.usage().since(before)
    return {
        "loop_us": used.loop_cpu / used.emitted / 1e3,
        "engine_us": used.engine_cpu / used.emitted / 1e3,
        "tokens_per_second": used.emitted / used.at * 1e9,
    }


async def _reached(server: ServerProcess, cell: int, count: int) -> None:
    while server.board.cells[cell] < count:  # noqa: ASYNC110 - another process's memory has no event
        await asyncio.sleep(0.02)


async def _quiet(server: ServerProcess) -> None:
    """Wait until the engine makes no token any more."""
    emitted = -1
    while emitted != server.board.cells[EMITTED]:
        emitted = server.board.cells[EMITTED]
        await asyncio.sleep(0.05)


async def _ask_in_turn(client: Client, orders: Sequence[tuple[int, int]]) -> list[Answer]:
    recordings: list[Recording] = []
    for stream, max_tokens in orders:
        client.ask(stream, max_tokens)
        await client.over
        recordings.append(client.recording())
    return [recording.parse() for recording in recordings]


def _transits(server: ServerProcess, answers: Iterable[Answer]) -> list[int]:
    """Of each token but the first: from its making to its arrival."""
    return [
        arrived - made
        for answer in answers
        for arrived, made in zip(
            answer.tokens[1:TOKENS], server.board.moments(answer.stream)[1:], strict=False
        )
    ]


def _chunks(answers: Sequence[Answer]) -> Figures:
    tokens = sum(len(answer.tokens) for answer in answers)
    return {"tokens_per_chunk": tokens / sum(answer.chunks for answer in answers)}


def _spread(name: str, nanoseconds: Sequence[int]) -> Figures:
    percentiles = quantiles(nanoseconds, n=100)
    return {f"{name}_p50": percentiles[49] / 1e3, f"{name}_p99": percentiles[98] / 1e3}
