"""A connector for vLLM whose sender writes what it is given to files, and says so in a pipe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.vllm.server import FOLDER, PIPE
from tilert_engine.layouts.abc import KVLayout
from tilert_stream.nodes.hand_over.destination import Destination
from tilert_stream.nodes.vllm.ledger import Extraction, Withdrawal
from tilert_stream.nodes.vllm.types import SchedulerOutput
from tilert_stream.nodes.vllm_connector import StepMetadata, TilertStreamConnector


def folder() -> Path:
    return Path(os.environ[FOLDER])


def tell(where: Path, line: str) -> None:
    with (where / PIPE).open("w") as pipe:
        pipe.write(f"{line}\n")


def name_of(destination: Destination) -> str:
    return "" if destination.grant is None else destination.grant.request


@dataclass
class Dump:
    folder: Path
    extraction: Extraction
    staging: memoryview

    def send(self) -> None:
        name = name_of(self.extraction.destination)
        (self.folder / name).write_bytes(self.staging)
        tell(self.folder, f"sent {name} {self.extraction.seq_len} {self.extraction.last_token}")

    def abort(self, reason: str) -> None:
        tell(self.folder, f"failed {name_of(self.extraction.destination)} {reason}")

    def wait(self) -> None: ...


class DumpSender:
    def __init__(self, layout: KVLayout, rank: int) -> None:
        self._folder = folder()
        self._layout = layout
        self._rank = rank
        self.memory = memoryview(bytearray())

    def begin(self, extraction: Extraction) -> Dump:
        nbytes = self._layout.staging_bytes(extraction.seq_len, self._rank)
        return Dump(self._folder, extraction, memoryview(bytearray(nbytes)))

    def withdraw(self, withdrawal: Withdrawal) -> None:
        tell(self._folder, f"withdrawn {name_of(withdrawal.destination)} {withdrawal.reason}")

    def close(self) -> None: ...


class DumpingConnector(TilertStreamConnector):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        for new in scheduler_output.scheduled_new_reqs:
            tell(folder(), f"begun {new.req_id}")
        return super().build_connector_meta(scheduler_output)

    def make_sender(self, layout: KVLayout, rank: int) -> DumpSender:
        return DumpSender(layout, rank)
