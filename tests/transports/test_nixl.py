"""What is NIXL's own: its agent, its threads, what it prints, and memory on a device."""

from __future__ import annotations

import logging
import sys
import threading

import anyio
import orjson
import pytest

from tests.transports.kit import BACKENDS, SOON, connected, make, soon
from tilert_stream.completion import Completion
from tilert_transports import nixl
from tilert_transports.errors import (
    HandshakeMismatch,
    PeerStale,
    RegionInvalid,
    TransportClosed,
    TransportUnavailable,
)
from tilert_transports.nixl_binding import Binding, NativeAgent, installed
from tilert_transports.nixl_memory import Location, device_location
from tilert_transports.nixl_owner import NixlOwner
from tilert_transports.plan import Plan

NBYTES = 4096

needs_nixl = pytest.mark.skipif(not installed(), reason="no NIXL wheel")
both_backends = pytest.mark.parametrize("anyio_backend", BACKENDS)


class Tensor:
    """What a CUDA tensor tells of itself."""

    def __init__(self, *, device: int = 1, elements: int = 8, contiguous: bool = True) -> None:
        self._device, self._elements, self._contiguous = device, elements, contiguous

    def data_ptr(self) -> int:
        return 0x7F00_0000

    def get_device(self) -> int:
        return self._device

    def element_size(self) -> int:
        return 2

    def numel(self) -> int:
        return self._elements

    def is_contiguous(self) -> bool:
        return self._contiguous


def test_a_tensor_on_a_device_is_taken_by_its_pointer() -> None:
    assert device_location(Tensor()) == Location(0x7F00_0000, 16, 1)
    assert device_location(Tensor(device=-1)) is None
    assert device_location(bytearray(3)) is None
    for tensor in (Tensor(contiguous=False), Tensor(elements=0)):
        with pytest.raises(RegionInvalid, match="a contiguous one of 1 byte or more"):
            device_location(tensor)


def test_a_place_comes_back_from_the_card() -> None:
    for location in (Location(4096, 77), Location(12, 77, 0), Location(12, 77, 3)):
        assert Location.decode(location.encode(), 77) == location
    for text in ("", "host", "host:", "-1:5", "cuda:5", "host:0x5"):
        with pytest.raises(HandshakeMismatch, match="'host:ADDRESS' or 'DEVICE:ADDRESS'"):
            Location.decode(text, 77)


def test_without_a_wheel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "installed", lambda: False)
    with pytest.raises(TransportUnavailable, match=r"pip install 'tilert-stream\[nixl\]'"):
        nixl.NixlTransport()


@both_backends
@needs_nixl
async def test_it_prints_nothing_and_leaves_logging_alone(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", True)
    async with connected("nixl", NBYTES) as pair:
        await pair.write(Plan.whole(NBYTES))
    assert capfd.readouterr().out == ""
    assert logging.raiseExceptions


@both_backends
@needs_nixl
async def test_a_card_needs_a_region() -> None:
    transport = make("nixl")
    with pytest.raises(RegionInvalid, match="allocate or register one first"):
        transport.card()
    await transport.aclose()


@both_backends
@needs_nixl
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("metadata", "zz", "no hex digit"),
        ("metadata", "00" * 40, "NIXL does not take its metadata"),
        ("identity", "here", "a region lies at 'here'"),
        ("region0", None, "region0 is None, needs a string"),
    ],
)
async def test_a_damaged_card(field: str, value: str | None, message: str) -> None:
    async with connected("nixl", NBYTES) as pair:
        fields = orjson.loads(pair.reader.card())
        del fields["details"][field]
        if value is not None:
            fields["details"][field] = value
        with pytest.raises(HandshakeMismatch, match=message):
            await pair.writer.connect(orjson.dumps(fields), timeout=SOON)
        await pair.write(Plan.whole(NBYTES))


@both_backends
@needs_nixl
async def test_metadata_of_another_agent() -> None:
    async with connected("nixl", NBYTES) as pair:
        fields = orjson.loads(pair.reader.card())
        fields["incarnation"] = "ab" * 16
        with pytest.raises(HandshakeMismatch, match=f"not of 'tilert-{'ab' * 16}'"):
            await pair.writer.connect(orjson.dumps(fields), timeout=SOON)


@both_backends
@needs_nixl
async def test_a_peer_with_another_incarnation_in_its_memory_is_stale() -> None:
    async with connected("nixl", NBYTES) as pair:
        fields = orjson.loads(pair.reader.card())
        # The address of a region that begins with other bytes.
        fields["details"]["identity"] = fields["details"]["region0"]
        with pytest.raises(PeerStale, match="has restarted as"):
            await pair.writer.connect(orjson.dumps(fields), timeout=SOON)


@both_backends
@needs_nixl
async def test_one_of_two_connections_can_be_closed() -> None:
    async with connected("nixl", NBYTES) as pair:
        second = await pair.writer.connect(pair.reader.card(), timeout=SOON)
        await pair.writer.disconnect(second)
        await pair.write(Plan.whole(NBYTES))
        await pair.writer.disconnect(pair.peer)
        third = await pair.writer.connect(pair.reader.card(), timeout=SOON)
        await pair.writer.write(third, pair.source, pair.target, Plan.whole(1), deadline=soon())


@both_backends
@needs_nixl
async def test_one_owner_thread_an_agent() -> None:
    async with connected("nixl", NBYTES) as pair:
        for _ in range(3):
            await pair.writer.connect(pair.reader.card(), timeout=SOON)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("tilert-nixl-owner") == 2


@both_backends
@needs_nixl
async def test_a_command_after_the_end_hears_so() -> None:
    owner = NixlOwner("tilert-test-late")
    gate, entered = threading.Event(), Completion[None]()

    def hold(agent: NativeAgent, binding: Binding) -> None:
        del agent, binding
        entered.set(None)
        gate.wait(SOON)

    late = Completion[None]()
    owner.attempt(hold, late.fail)
    with anyio.fail_after(SOON):
        await entered.wait()
        owner.stop()
        owner.attempt(lambda _agent, _binding: None, late.fail)
        gate.set()
        await owner.ended.wait()
        with pytest.raises(TransportClosed, match="the NIXL agent has ended"):
            await late.wait()


LEAVING = """
import anyio
from tilert_transports.registry import make

async def main() -> None:
    reader, writer = make("nixl"), make("nixl")
    await reader.allocate(4096)
    await writer.connect(reader.card(), timeout=SOON)
    kept.extend([reader, writer])

kept = []
anyio.run(main)
"""


@needs_nixl
@pytest.mark.parametrize("anyio_backend", BACKENDS[1:])
async def test_a_process_that_closes_nothing_ends_well() -> None:
    ended = await anyio.run_process([sys.executable, "-c", LEAVING])
    assert (ended.returncode, ended.stdout) == (0, b"")
