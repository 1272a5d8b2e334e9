from __future__ import annotations

from pathlib import Path

import pytest

from bench.hand_over import hand_overs
from bench.report import tables
from bench.results import Results
from bench.transports import METRICS, latency, readiness, targets, throughput


@pytest.mark.parametrize("kind", ["shm", "tcp"])
async def test_every_figure_of_a_transport_is_measured_and_checked(
    kind: str, tmp_path: Path
) -> None:
    results = Results()
    await throughput(kind, 1, 2, results)
    await latency(kind, 3, 2, results)
    await readiness(kind, 3, 2, results)
    for metric, scenario in (("times_bare", "1 MB"), ("write_p99", "1 MB"), ("ready_p50", "1 MB")):
        assert (results.median(kind, scenario, metric) or 0) > 0
    assert len(list(tables(results, METRICS))) == len(METRICS)
    file = tmp_path / "figures.json"
    results.save(file)
    ready = [target for target in targets(Results.load(file)) if "hand-over" in target.what]
    assert [target.host for target in ready if target.value is not None] == [kind]


async def test_a_hand_over_is_timed_each_time_but_for_the_first() -> None:
    times = await hand_overs("memory", 2, warm_up=1)
    assert len(times) == 2
    assert min(times) > 0
