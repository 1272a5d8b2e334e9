"""``docs/metrics.md`` has every metric, with the code's own words."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from tests.telemetry.played import played, whole
from tilert_stream.events import Finished
from tilert_stream.telemetry.metrics import METRICS, PREFIX, Metric
from tilert_stream.telemetry.request_log import RequestLog

PAGE = Path(__file__).parents[2].joinpath("docs", "metrics.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith(f"| `{PREFIX}")]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_has_its_row(metric: Metric) -> None:
    label = f"`{metric.label}`" if metric.label else ""
    vllm = f"`{metric.exposed_vllm}`" if metric.exposed_vllm else ""
    cells = (f"`{metric.exposed}`", metric.kind, label, metric.help, vllm)
    assert f"| {' | '.join(cells)} |" in ROWS


def test_the_page_has_no_metric_that_there_is_not() -> None:
    assert len(ROWS) == len(METRICS)
    queried = re.findall(rf"{PREFIX}(\w+)", PAGE.split("```promql")[1].split("```")[0])
    suffixes = ("", "_bucket", "_total")
    known = {metric.name + suffix for metric in METRICS for suffix in suffixes}
    assert set(queried) <= known


def test_the_line_of_the_page_has_the_members_of_a_line() -> None:
    text = PAGE.split("```json\n")[1].split("```")[0]
    shown = orjson.loads(text)
    written: list[bytes] = []
    with played() as request:
        whole(request)
        RequestLog(written.append).ended(request.scope, Finished("stop"))
    logged = orjson.loads(written[0])
    assert list(shown) == list(logged)
    assert list(shown["timeline_ms"]) == list(logged["timeline_ms"])
