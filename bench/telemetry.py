"""What looking on costs: microseconds of CPU a token and a request, with telemetry and without.

    python -m bench.telemetry

A token goes the way of a stream's wake: out of the mailbox, through the fused chain up to the bytes
of an event. Printed are medians over rounds in which the candidates take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from tilert_stream.events import Finished, TextDelta, TokenBatch
from tilert_stream.fusion import Chain, fuse
from tilert_stream.lifecycle import State
from tilert_stream.link import make_link
from tilert_stream.openai.envelope import Envelope
from tilert_stream.stages.sse import EncodeSSE
from tilert_stream.telemetry.exposition import ReadingCollector, render
from tilert_stream.telemetry.meter import Meter
from tilert_stream.telemetry.observer import Observers
from tilert_stream.telemetry.record import RequestRecord, Tally
from tilert_stream.telemetry.request_log import RequestLog
from tilert_stream.testing import make_scope

if TYPE_CHECKING:
    from tilert_stream.scope import RequestScope

ROUNDS = 21
TOKENS = 20_000
REQUESTS = 2_000

Candidate = Callable[[], object]


class Spell:
    """Stands for the detokenizer: a text for each batch."""

    def feed(self, batch: TokenBatch) -> Sequence[TextDelta]:
        return (TextDelta(" token", batch.ids, (6,) * len(batch.ids)),)

    def finish(self, _outcome: Finished) -> Sequence[TextDelta]:
        return ()


def cpu(candidate: Candidate) -> float:
    """Seconds."""
    begin = time.thread_time()
    candidate()
    return time.thread_time() - begin


def report(title: str, candidates: dict[str, Candidate], units: int) -> None:
    """Print each candidate, and what it has over the first."""
    rounds = [[cpu(candidate) for candidate in candidates.values()] for _ in range(ROUNDS)]
    print(f"\n{title}")
    for place, name in enumerate(candidates):
        each = median(times[place] for times in rounds) / units * 1e6
        more = median(times[place] - times[0] for times in rounds) / units * 1e6
        print(f"  {name:<40}{each:8.3f} µs{more:+8.3f} µs")


def wakes(batch: TokenBatch, *, counted: bool) -> Candidate:
    """A request of ``TOKENS`` tokens, each wake one ``batch``."""
    encode = EncodeSSE(Envelope("0" * 32, "chat", "m", stream=True, include_usage=True))

    def run() -> None:
        with make_scope() as scope:
            chain: Chain[object, object]
            chain, _ = fuse([make_link(Spell()), make_link(encode)], scope)
            tally = Tally() if counted else None
            for _ in range(TOKENS // len(batch.ids)):
                arrived = [batch]
                if tally is not None:
                    tally.note(arrived)
                chain.run(arrived)
            chain.run([Finished("stop")])

    return run


def requests(scope: RequestScope, observers: Observers) -> Candidate:
    """Requests that begin and end."""

    def run() -> None:
        for _ in range(REQUESTS):
            if observers:
                observers.began(scope)
                observers.ended(scope, Finished("stop"))

    return run


def main() -> None:
    for size in (1, 8):
        batch = TokenBatch(tuple(range(size)))
        report(
            f"A token, {size} a wake, through the fused chain with SSE",
            {
                "without telemetry": wakes(batch, counted=False),
                "counted": wakes(batch, counted=True),
            },
            TOKENS,
        )
    with make_scope() as scope:
        scope.record = RequestRecord(endpoint="/v1/completions", model="m", stream=True)
        for state in (State.RESERVED, State.PREFILLING, State.IMPORTING_KV, State.DECODING):
            scope.lifecycle.move(state)
            scope.record.tokens.note([TokenBatch((1,))])
        scope.lifecycle.end(State.DONE)
        meter = Meter()
        counting, logging = Observers(), Observers()
        counting.add(meter)
        logging.add(meter)
        logging.add(RequestLog(lambda _line: None))
        report(
            "A request",
            {
                "without telemetry": requests(scope, Observers()),
                "counted": requests(scope, counting),
                "counted, with a log line (not written)": requests(scope, logging),
            },
            REQUESTS,
        )
    report(
        "A scrape, with vLLM's names",
        {
            "copying the numbers (on the event loop)": meter.reading,
            "and the text (on another thread)": lambda: render(
                ReadingCollector(meter.reading(), model="m", vllm=True)
            ),
        },
        1,
    )


if __name__ == "__main__":
    main()
