"""A connector for vLLM whose sender writes what it is given to files: staging and destination."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tilert_engine.layouts.gqa import GqaLayout
from tilert_stream.nodes.vllm_connector import TilertStreamConnector
from tilert_stream.nodes.vllm_ledger import Extraction, Withdrawal

FOLDER = "TILERT_STREAM_TEST_DUMPS"


@dataclass
class Dump:
    folder: Path
    extraction: Extraction
    layout: GqaLayout
    staging: memoryview

    def send(self) -> None:
        grant = self.extraction.destination.grant
        name = "none" if grant is None else grant.request
        (self.folder / f"{name}.bin").write_bytes(self.staging)
        about = {**asdict(self.extraction), "layout": dict(self.layout.describe())}
        (self.folder / f"{name}.json").write_text(json.dumps(about))

    def abort(self, reason: str) -> None:
        (self.folder / f"{self.extraction.request_id}.failed").write_text(reason)

    def wait(self) -> None:
        pass


class DumpSender:
    def __init__(self, layout: GqaLayout, rank: int) -> None:
        self._folder = Path(os.environ[FOLDER])
        self._layout = layout
        self._rank = rank

    def begin(self, extraction: Extraction) -> Dump:
        nbytes = self._layout.staging_bytes(extraction.seq_len, self._rank)
        return Dump(self._folder, extraction, self._layout, memoryview(bytearray(nbytes)))

    def withdraw(self, withdrawal: Withdrawal) -> None:
        grant = withdrawal.destination.grant
        name = "none" if grant is None else grant.request
        (self._folder / f"{name}.withdrawn").write_text(withdrawal.reason)

    def close(self) -> None:
        pass


class DumpingConnector(TilertStreamConnector):
    def make_sender(self, layout: GqaLayout, rank: int) -> DumpSender:
        return DumpSender(layout, rank)
