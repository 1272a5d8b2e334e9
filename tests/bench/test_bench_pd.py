from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from bench.client import Recording
from bench.pd import scenarios
from bench.pd.answers import parse
from bench.pd.report import METRICS
from bench.pd.routers import start, start_nodes
from bench.pd.targets import targets
from bench.report import tables
from bench.results import Results

if TYPE_CHECKING:
    from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"x":{"content":"bc"}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize("cut", range(1, len(EVENTS)))
def test_tokens_are_found_wherever_a_router_cuts_its_chunks(cut: int) -> None:
    first, second = HEAD + chunk(EVENTS[:cut]), chunk(EVENTS[cut:]) + chunk(DONE)
    answer = parse(Recording(3, 1, [(10, first), (20, second), (30, b"0\r\n\r\n")]))
    early = EVENTS.index(b'"a"') + 3 <= cut, EVENTS.index(b'"bc"') + 4 <= cut
    assert answer.tokens == [10 if early[0] else 20] + 2 * [10 if early[1] else 20]
    assert (answer.stream, answer.done, answer.chunks) == (3, 20, 3)


@pytest.mark.parametrize("name", ["floor", "relay", "ours"])
def test_every_load_gives_its_figures(name: str, tmp_path: Path) -> None:
    async def measure() -> Results:
        results = Results()
        await scenarios.warm_up(router)
        for load, scenario in (
            ("1 @ 5 ms", scenarios.streams(2, 0.001, 5, 2, router)),
            ("8 @ 0 ms", scenarios.streams(4, 0, 30, 2, router)),
            ("leaving @ 400 ms", scenarios.leaving(100, 2, router)),
        ):
            results.add(0, name, load, await scenario)
        return results

    with (
        start_nodes(tmp_path / "board") as nodes,
        start(name, nodes, "") as router,
    ):
        results = asyncio.run(measure())
    for load in ("1 @ 5 ms", "8 @ 0 ms"):
        assert results.median(name, load, "unfinished") == 0
        for metric in ("first_p50", "transit_p50", "gap_p99"):
            assert (results.median(name, load, metric) or 0) > 0
    assert (results.median(name, "leaving @ 400 ms", "leave_p99") or 1e9) < 6e7
    assert list(tables(results, METRICS))
    measured = [target.what for target in targets(results) if target.value is not None]
    assert bool(measured) == (name == "ours")
