from __future__ import annotations

import asyncio
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import report, scenarios
from bench.client import Recording
from bench.results import Results
from bench.server import start
from bench.svg import bars
from bench.targets import targets

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def event(content: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"' + content.encode() + b'"}}]}\n\n'


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def test_a_token_has_arrived_with_the_read_that_completes_its_event() -> None:
    first, second = chunk(event("a")), chunk(event("bc") + event("d"))
    end = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    reads = [
        (10, HEAD + first + second[:30]),
        (20, second[30:] + end[:9]),
        (30, end[9:]),
    ]
    answer = Recording(7, 1, reads).parse()
    assert (answer.stream, answer.asked) == (7, 1)
    assert answer.tokens == [10, 20, 20, 20]
    assert answer.done == 30
    assert answer.chunks == 3


@pytest.mark.parametrize(
    "names", [("reasoning_content", "reasoning"), ("reasoning",), ("content",)]
)
def test_met_02_the_first_token_of_any_channel_counts(names: tuple[str, ...]) -> None:
    delta = ",".join(f'"{name}":"t"' for name in names)
    thought = b'data: {"choices":[{"delta":{"role":"assistant",%b}}]}\n\n' % delta.encode()
    reads = [(10, HEAD + chunk(thought)), (20, chunk(thought)), (30, chunk(event("a")))]
    assert Recording(7, 1, reads).parse().tokens == [10, 20, 30]


def test_an_answer_that_has_not_ended_says_so() -> None:
    assert Recording(0, 1, [(10, HEAD + chunk(event("a")))]).parse().done == 0


def test_a_refusal_is_no_answer() -> None:
    with pytest.raises(RuntimeError, match=r"stream 3 was refused.*429"):
        Recording(3, 1, [(10, b"HTTP/1.1 429 \r\n\r\n")]).parse()


def test_comparisons_are_made_round_by_round(tmp_path: Path) -> None:
    results = Results({"python": "3"})
    for number, (floor, ours) in enumerate([(10.0, 30.0), (100.0, 110.0), (20.0, 30.0)]):
        results.add(number, "floor", "busy 64×1", {"loop_us": floor})
        results.add(number, "ours", "busy 64×1", {"loop_us": ours})
    results.save(tmp_path / "results" / "run.json")
    results = Results.load(tmp_path / "results" / "run.json")
    assert results.median("ours", "busy 64×1", "loop_us") == 30
    assert results.excess("ours", "floor", "busy 64×1", "loop_us") == 10
    assert results.ratio("ours", "floor", "busy 64×1", "loop_us") == 1.5
    assert results.ratio("ours", "hypercorn", "busy 64×1", "loop_us") is None
    verdicts = {target.what: target.verdict for target in targets(results) if target.host == "ours"}
    assert verdicts["busy 64×1: µs CPU a token above floor"] == "holds"
    assert verdicts["time to first token, µs above floor"] == "not measured"


def test_a_figure_above_its_limit_is_missed() -> None:
    results = Results()
    results.add(0, "floor", "first 1", {"first_p50": 1.0})
    results.add(0, "ours", "first 1", {"first_p50": 1002.0})
    missed = [target.what for target in targets(results) if target.verdict == "MISSED"]
    assert missed == ["time to first token, µs above floor"]


def test_a_table_has_a_row_a_host() -> None:
    results = Results()
    results.add(0, "floor", "ends 8", {"gap_p50": 100.0})
    results.add(0, "ours", "ends 8", {"gap_p50": 140.0})
    (table,) = report.tables(results)
    assert list(table.columns[0].cells) == ["floor", "ours"]
    assert list(table.columns[1].cells) == ["100", "140"]


def test_bars_are_on_one_scale() -> None:
    drawn = bars("a < b", ["floor", "ours"], ["x"], [[50.0], [100.0]])
    picture = ElementTree.fromstring(drawn)
    widths = [
        float(bar.attrib["width"])
        for bar in picture.iter("{http://www.w3.org/2000/svg}rect")
        if bar.attrib["x"] == "150" and bar.attrib["y"] != "34"
    ]
    assert widths[1] == 2 * widths[0]


@pytest.mark.parametrize("host", ["floor", "ours"])
def test_every_token_is_seen_on_both_sides(host: str) -> None:
    async def measure() -> dict[str, float]:
        figures = await scenarios.busy(2, 4, 0.5, server)
        return figures | await scenarios.ends(2, 3, server)

    with start(host) as server:
        figures = asyncio.run(measure())
    assert figures["tokens_per_chunk"] > 3
    assert 0 < figures["transit_p50"] <= figures["transit_p99"]
    assert 0 < figures["gap_p50"] <= figures["gap_p99"]
    assert figures["loop_us"] > 0
