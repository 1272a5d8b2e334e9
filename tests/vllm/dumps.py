"""KV caches that the dumping connector took out of a vLLM, and what they should be."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.vllm.conftest import Whole
from tests.vllm.server import FOLDER, PIPE, Transfer, VllmServer, vllm_server
from tilert_engine.layouts.gqa import GqaLayout, StagedKV
from tilert_stream.nodes.hand_over.destination import Destination, Grant, params_for

CLOSE = 1e-4
"""How far sums in another order may lead, in float32, where a row's largest element is 1 or less.

vLLM rounds the angles of its rotary embedding to float32: at position 700 its keys, of which the
largest are 24, are off by 2e-4 from those of a float64 forward pass (ours by 3e-5).
"""


@dataclass
class Dumps:
    server: VllmServer
    folder: Path
    events: IO[str]
    layout: GqaLayout

    def params(self, request: str) -> dict[str, object]:
        return params_for(Destination("nowhere", 1, Grant(request, "d-1", 1)))

    def next(self, kind: str) -> str:
        """The next event of a kind; others before it are passed over."""
        return next(line.rstrip() for line in self.events if line.startswith(kind))

    def prefill(self, request: str, prompt: list[int]) -> None:
        self.server.first_token(prompt, self.params(request))

    def staged(self, request: str, tokens: int) -> StagedKV:
        staging = memoryview(bytearray((self.folder / request).read_bytes()))
        assert staging.nbytes == self.layout.staging_bytes(tokens)
        return self.layout.staged(staging, tokens)

    def check(self, whole: Whole, request: str, prompt: list[int]) -> None:
        """What was handed over is the cache of a plain forward pass."""
        staged, cache = self.staged(request, len(prompt)), whole.cache(prompt)
        for got, wanted in ((staged.keys, cache.keys), (staged.values, cache.values)):
            largest = wanted.abs().amax(-1, keepdim=True).clamp(min=1)
            assert ((got.transpose(1, 2) - wanted).abs() / largest).max().item() <= CLOSE


@contextmanager
def dumping_server(
    python: str,
    model: Path,
    whole: Whole,
    folder: Path,
    *,
    transfer: Transfer = dict,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Generator[Dumps]:
    os.mkfifo(folder / PIPE)
    # Open for both: neither this nor the writers wait for the other side.
    with (
        open(os.open(folder / PIPE, os.O_RDWR), closefd=True) as events,
        vllm_server(
            python,
            model,
            folder / "vllm.log",
            connector="DumpingConnector",
            module="tests.vllm.dumping",
            transfer=transfer,
            environment={FOLDER: str(folder), **(environment or {})},
            arguments=arguments,
        ) as server,
    ):
        layout = GqaLayout.of(whole.checkpoint, dtype="float32", max_seq_len=2048)
        yield Dumps(server, folder, events, layout)
