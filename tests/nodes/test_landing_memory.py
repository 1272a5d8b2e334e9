"""An engine that reads landed KV caches itself is shown all their memory before any can land."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
from tilert_stream.config import DecodeConfig
from tilert_stream.nodes.decode_app import DecodeApp
from tilert_stream.nodes.landing_port import LandingPort
from tilert_stream.serve.decode import build_decode
from tilert_stream.serve.front import byte_front


class Reading(ScriptedDecode):
    def __init__(self) -> None:
        super().__init__(Script(), slots=2, max_seq_len=300)
        self.shown: list[int] = []
        self.left = 0

    @contextmanager
    def landing(self, memory: memoryview, /) -> Generator[None]:
        self.shown.append(memory.nbytes)
        memory[-1] = 7
        yield
        # Still there: whatever the device reads, it reads from memory that is mapped.
        assert memory[-1] == 7
        self.left += 1


class Served:
    def __init__(self, config: DecodeConfig) -> None:
        self.front = byte_front(config, 300)
        self.prefill = ScriptedPrefill(Script(), max_seq_len=300)
        self.decode = Reading()
        self.layout = ScriptedLayout(300)


@pytest.fixture
def served() -> tuple[Reading, DecodeApp, LandingPort]:
    config = DecodeConfig(engine="scripted", ctrl_port=0, transport="shm", regions=5)
    model = Served(config)
    return model.decode, *build_decode(config, model)


async def test_regions_are_shown_to_the_engine_as_one_and_given_back_last(
    served: tuple[Reading, DecodeApp, LandingPort],
) -> None:
    engine, app, port = served
    assert not engine.shown
    for times in (1, 2):
        async with app.lifespan():
            # A region is 300 ids of 4 bytes; each begins on a page of its own.
            assert engine.shown == [5 * 4096] * times
            assert engine.left == times - 1
            assert port.reserve(f"r{times}", 300).granted.region.nbytes == 1200
        assert engine.left == times
