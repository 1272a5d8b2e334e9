"""KV caches that land in a device's memory: all of it that needs no device."""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tilert_engine.layouts.abc import KVLayout
from tilert_engine.layouts.gqa import GqaLayout
from tilert_engine.layouts.landed import LandedKV, LandingDecode
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_cache import ImportedKV
from tilert_engine.layouts.mla_nsa_model import MlaNsaModel
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.torch.kv_cache import KVCache
from tilert_stream.config import DecodeConfig
from tilert_stream.errors import ConfigError, EngineFault
from tilert_stream.events import Limits, Sampling
from tilert_stream.nodes import landing_memory
from tilert_stream.nodes.device_memory import landing_device
from tilert_stream.nodes.landing_memory import LandingMemory
from tilert_stream.serve.decode import build_decode
from tilert_stream.serve.models import load_model
from tilert_transports import nixl_owner
from tilert_transports.control.tilert_pd_card import tilert_place
from tilert_transports.nixl_binding import installed
from tilert_transports.registry import make

MODEL = MlaNsaModel("three", 2, 1)
FP8 = MlaNsaLayout(model=MODEL, dtype="fp8_ds_mla", max_seq_len=192)
BF16 = MlaNsaLayout(model=MODEL, dtype="bf16", max_seq_len=192)
GQA = GqaLayout(model="m", layers=2, kv_heads=4, head_dim=3, dtype="float32", max_seq_len=8)
SPLIT = GqaLayout(
    model="m", layers=2, kv_heads=4, head_dim=3, dtype="float32", max_seq_len=8, senders=2
)
LAYOUTS: list[tuple[MlaNsaLayout | GqaLayout, int]] = [
    (FP8, 100),
    (BF16, 64),
    (GQA, 5),
    (SPLIT, 8),
]


def noise(nbytes: int) -> torch.Tensor:
    """Bytes that are small numbers in every format."""
    generator = torch.Generator().manual_seed(nbytes)
    return torch.randint(0, 64, (nbytes,), generator=generator, dtype=torch.uint8)


def parts(kv: object) -> Sequence[torch.Tensor]:
    if isinstance(kv, ImportedKV):
        return (kv.ki, kv.kv, kv.pe)
    assert isinstance(kv, KVCache)
    return (kv.keys, kv.values)


@pytest.mark.parametrize(("layout", "tokens"), LAYOUTS)
def test_what_is_read_of_a_device_is_what_is_read_of_the_host(
    layout: MlaNsaLayout | GqaLayout, tokens: int
) -> None:
    region = noise(layout.region_bytes)
    there = layout.unpack_device(region, tokens)
    expected = layout.unpack(memoryview(bytearray(region.numpy().tobytes())), tokens)
    for got, want in zip(parts(there), parts(expected), strict=True):
        assert torch.equal(got, want)
    # The next KV cache may land now.
    before = [part.clone() for part in parts(there)]
    region.fill_(1)
    for got, want in zip(parts(there), before, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    "region",
    [
        torch.zeros(3, dtype=torch.uint8),
        torch.zeros(FP8.region_bytes, dtype=torch.int8),
        torch.zeros(2, FP8.region_bytes, dtype=torch.uint8),
        torch.zeros(2 * FP8.region_bytes, dtype=torch.uint8)[::2],
    ],
)
def test_a_region_that_is_none_is_refused(region: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"are needed|is needed"):
        FP8.unpack_device(region, 3)


class Opened:
    """An engine that keeps what it is given."""

    slots, max_seq_len = 1, 192

    def open(
        self, slot: int, kv: object, first_token: int, limits: Limits, sampling: Sampling, /
    ) -> object:
        return kv

    def advance(self, sequence: object, /) -> Any:
        raise NotImplementedError

    def close(self, sequence: object, /) -> None:
        raise NotImplementedError


def land(layout: KVLayout, kv: LandedKV) -> object:
    return LandingDecode(Opened(), layout).open(0, kv, 5, Limits(3), Sampling())


def test_the_engine_is_given_what_lies_on_its_device() -> None:
    region = noise(FP8.region_bytes)
    checksum = 0
    for _, offset, nbytes in FP8.plan(100):
        checksum = zlib.crc32(region[offset : offset + nbytes].numpy().data, checksum)
    kv = land(FP8, LandedKV(region, 100, {0: checksum}))
    for got, want in zip(parts(kv), parts(FP8.unpack_device(region, 100)), strict=True):
        assert torch.equal(got, want)
    with pytest.raises(EngineFault, match="has the checksum"):
        land(FP8, LandedKV(region, 100, {0: checksum ^ 1}))


def test_a_layout_of_the_host_alone_says_so() -> None:
    with pytest.raises(EngineFault, match="scripted layout reads host memory alone"):
        land(ScriptedLayout(8), LandedKV(torch.zeros(32, dtype=torch.uint8), 3))


# --- where it lands -------------------------------------------------------------------------------


def test_the_host_needs_no_device() -> None:
    assert landing_device("host", "cpu", ScriptedLayout(8)) is None


def test_without_cuda_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"landing_memory is 'device'.* no CUDA device") as caught:
        landing_device("device", "auto", FP8)
    assert caught.value.param == "landing_memory"
    config = DecodeConfig(engine="scripted", model="bytes", landing_memory="device", ctrl_port=0)
    with pytest.raises(ConfigError, match="landing_memory is 'device'"):
        build_decode(config, load_model(config, slots=1))


def test_what_does_not_go_with_it_on_a_machine_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    with pytest.raises(ConfigError, match=r"the engine is on 'cpu'; .* --device cuda"):
        landing_device("device", "cpu", FP8)
    with pytest.raises(ConfigError, match="layout 'scripted' reads host memory alone"):
        landing_device("device", "auto", ScriptedLayout(8))
    assert landing_device("device", "auto", FP8) == "cuda:3"
    assert landing_device("device", "cuda", GQA) == "cuda:3"
    assert landing_device("device", "cuda:1", GQA) == "cuda:1"


@pytest.mark.parametrize("name", ["memory", "shm", "tcp"])
async def test_a_transport_that_cannot_is_refused(name: str) -> None:
    transport = make(name)
    with pytest.raises(ConfigError, match=f"transport is '{name}'.*--transport nixl"):
        await LandingMemory.allocate(transport, GQA, 3, device="cuda:0")
    await transport.aclose()


# --- what NIXL is told ----------------------------------------------------------------------------


class Tensor:
    """What a CUDA tensor tells of itself."""

    def __init__(self, nbytes: int, device: str) -> None:
        self._nbytes, self._device = nbytes, int(device.removeprefix("cuda:"))

    def data_ptr(self) -> int:
        return 0x7F00_0000_0000

    def get_device(self) -> int:
        return self._device

    def element_size(self) -> int:
        return 1

    def numel(self) -> int:
        return self._nbytes

    def is_contiguous(self) -> bool:
        return True


class FakeAgent:
    """Takes every registration down."""

    def __init__(self) -> None:
        self.registered: list[tuple[str, list[list[int]]]] = []

    def registerMem(self, descs: tuple[str, list[list[int]]], backends: object, /) -> None:  # noqa: N802 - NIXL's name
        self.registered.append(descs)

    def getLocalMD(self) -> bytes:  # noqa: N802 - NIXL's name
        return b"metadata"


class FakeBinding:
    """Lists as they are."""

    DRAM_SEG, VRAM_SEG = "DRAM", "VRAM"

    def nixlRegDList(self, kind: str, rows: np.ndarray) -> tuple[str, list[list[int]]]:  # noqa: N802 - NIXL's name
        return kind, rows.tolist()


@pytest.mark.skipif(not installed(), reason="no NIXL wheel")
async def test_device_memory_is_registered_as_such_and_named_to_stock_senders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = FakeAgent()
    monkeypatch.setattr(nixl_owner, "load", FakeBinding)

    def made(_binding: object, _name: str) -> FakeAgent:
        return agent

    monkeypatch.setattr(nixl_owner, "make_agent", made)
    monkeypatch.setattr(landing_memory, "device_memory", Tensor)
    transport = make("nixl")
    memory = await LandingMemory.allocate(transport, FP8, 3, device="cuda:2")
    stride = -(-FP8.region_bytes // 4096) * 4096
    identity, landing = agent.registered
    assert (identity[0], identity[1][0][1:]) == ("DRAM", [16, 0])
    assert landing == ("VRAM", [[0x7F00_0000_0000, 3 * stride, 2]])
    assert [region.offset for region in memory.regions] == [0, stride, 2 * stride]
    place = tilert_place(transport, memory.memory)
    assert place.address == 0x7F00_0000_0000
    assert place.card["nixl_dev"] == 2
    assert b64decode(str(place.card["nixl_meta"])) == b"metadata"
    # Nothing on the host is there to be prepared.
    async with memory.prepared(lambda _memory: pytest.fail("there is no host memory")):
        pass
    await transport.aclose()


async def test_a_region_is_its_part_of_the_device_s_memory() -> None:
    whole = torch.arange(256, dtype=torch.uint8)
    transport = make("memory")
    region = await transport.register(whole.numpy())
    made = await LandingMemory.allocate(transport, GQA, 1)
    memory = LandingMemory(transport, region, made.regions, whole)
    view = memory.view(made.regions[0])
    assert isinstance(view, torch.Tensor)
    assert view.data_ptr() == whole.data_ptr() + made.regions[0].offset
    await transport.aclose()
