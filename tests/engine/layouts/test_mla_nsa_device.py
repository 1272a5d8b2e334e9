"""The import to a device, its streams played by the host: what waits for what, and what arrives."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch

from tests.engine.layouts import mla_nsa_reference as reference
from tilert_engine.layouts import mla_nsa_device
from tilert_engine.layouts.mla_nsa_cache import CachedKV, WirePlanes, import_planes
from tilert_engine.layouts.mla_nsa_device import import_to_cuda
from tilert_engine.layouts.mla_nsa_model import CacheDtype

CPU = torch.device("cpu")


class Event:
    def __init__(self, *, blocking: bool = False) -> None:
        self.blocking = blocking
        self.stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.stream = stream
        stream.log.append(("record", self))

    def synchronize(self) -> None:
        assert self.stream is not None
        self.stream.log.append(("synchronize", self))


class Stream:
    """Notes what it is given; the host has done it by then."""

    def __init__(self, name: str, log: list[tuple[str, object]]) -> None:
        self.name = name
        self.log = log

    def wait_stream(self, other: Stream) -> None:
        self.log.append((f"{self.name} waits for {other.name}", None))

    def wait_event(self, event: Event) -> None:
        self.log.append((f"{self.name} waits", event))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    made: list[tuple[str, object]] = []
    streams = {name: Stream(name, made) for name in ("computing", "copying")}

    def current(_device: torch.device) -> Stream:
        return streams["computing"]

    def copying(_device: torch.device) -> Stream:
        return streams["copying"]

    @contextmanager
    def entered(stream: Stream) -> Generator[None]:
        assert stream.name == "copying"
        made.append(("copies", None))
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(mla_nsa_device, "_copying", copying)
    return made


def planes(layers: int, tokens: int, dtype: CacheDtype) -> WirePlanes:
    sent = reference.drawn(8, 3, tokens, dtype)
    chosen = [layer % 3 for layer in range(layers)]
    rows, pages = torch.tensor(sent.rows)[chosen], torch.tensor(sent.pages)[chosen]
    return CachedKV("m", rows, pages).planes


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", ["fp8_ds_mla", "bf16"])
@pytest.mark.parametrize(("layers", "tokens"), [(1, 1), (2, 64), (5, 130), (33, 70)])
def test_what_arrives_is_what_the_host_computes(
    layers: int, tokens: int, dtype: CacheDtype, kept: torch.dtype
) -> None:
    sent = planes(layers, tokens, dtype)
    here = import_planes("m", sent, dtype=kept)
    there = import_to_cuda(sent, kept, CPU)
    for name, taken in zip(("ki", "kv", "pe"), there, strict=True):
        assert torch.equal(taken, getattr(here, name))


def test_a_staging_is_written_over_when_it_has_been_read(log: list[tuple[str, object]]) -> None:
    import_to_cuda(planes(33, 3, "fp8_ds_mla"), torch.bfloat16, CPU)
    assert log[0] == ("copying waits for computing", None)
    read = [event for what, event in log if what == "record"][:-1]
    waits = [event for what, event in log if what == "copying waits"]
    # Two stagings: the third group of layers waits for the first to have been dequantised.
    assert waits == read[:-2]
    assert len(waits) > 3
    for event in waits:
        assert log.index(("record", event)) < log.index(("copying waits", event))


def test_it_returns_when_the_host_memory_has_been_read(log: list[tuple[str, object]]) -> None:
    import_to_cuda(planes(3, 3, "fp8_ds_mla"), torch.bfloat16, CPU)
    (_, recorded), (last, event) = log[-2:]
    assert (last, event) == ("synchronize", recorded)
    assert isinstance(event, Event)
    assert event.stream is not None
    assert (event.stream.name, event.blocking) == ("copying", True)
