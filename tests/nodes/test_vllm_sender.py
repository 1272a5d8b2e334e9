from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_stream.errors import Busy, ConfigError, ContextLengthExceeded, NotReady
from tilert_stream.nodes.hand_over.destination import Destination
from tilert_stream.nodes.hand_over.parcel import Parcel
from tilert_stream.nodes.vllm.ledger import Extraction, Withdrawal
from tilert_stream.nodes.vllm.sender import SenderThread
from tilert_stream.nodes.vllm.worker import KVSender

NODE = Destination("node", 5556)
LAYOUT = ScriptedLayout(64)


def extraction(request_id: str, seq_len: int = 8) -> Extraction:
    return Extraction(request_id, NODE, seq_len, 42, "d" * 16, (0,))


@dataclass
class FakeCourier:
    """Delivers into a list; ``hold`` keeps it until it is cancelled."""

    staging: memoryview
    hold: bool = False
    fault: Exception | None = None
    unreachable: bool = False
    delivered: list[tuple[Parcel, bytes]] = field(default_factory=list[tuple[Parcel, bytes]])
    cancelled: list[str] = field(default_factory=list[str])
    told: list[tuple[Destination, str]] = field(default_factory=list[tuple[Destination, str]])
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    closed: bool = False

    async def deliver(self, parcel: Parcel) -> None:
        self.begun.release()
        try:
            if self.hold:
                await anyio.sleep_forever()
            if self.fault is not None:
                raise self.fault
            there = self.staging[parcel.offset : parcel.offset + parcel.nbytes]
            self.delivered.append((parcel, bytes(there)))
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(parcel.request_id)
            raise
        finally:
            self.ended.release()

    async def refuse(self, request_id: str, destination: Destination, reason: str) -> None:
        self.told.append((destination, reason))
        self.ended.release()
        if self.unreachable:
            raise NotReady("nobody answers")

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[FakeCourier]:
        yield self
        self.closed = True


@contextmanager
def running(courier: FakeCourier, *, timeout: float = 60) -> Generator[SenderThread]:
    sender = SenderThread(courier.open, LAYOUT, rank=0, timeout=timeout)
    try:
        yield sender
    finally:
        sender.close()


def courier(nbytes: int = 1024) -> FakeCourier:
    return FakeCourier(memoryview(bytearray(nbytes)))


def test_what_is_staged_is_delivered_and_its_memory_comes_back() -> None:
    fake = courier()
    with running(fake) as sender:
        contract: KVSender = sender
        hand_over = contract.begin(extraction("r"))
        hand_over.staging[:] = bytes(range(32))
        hand_over.send()
        hand_over.wait()
        assert sender.staging.free_bytes == 1024
    assert fake.delivered == [(Parcel("r", NODE, 8, 42, "d" * 16, 0, 32), bytes(range(32)))]
    assert fake.closed


def test_two_hand_overs_have_memory_of_their_own() -> None:
    fake = courier()
    with running(fake) as sender:
        one, other = sender.begin(extraction("r")), sender.begin(extraction("s", 4))
        one.staging[:] = b"\1" * 32
        other.staging[:] = b"\2" * 16
        for hand_over in (other, one):
            hand_over.send()
            hand_over.wait()
    assert [staged for _, staged in fake.delivered] == [b"\2" * 16, b"\1" * 32]


def test_pd_14_an_abort_before_sending_is_told_at_once() -> None:
    fake = courier()
    with running(fake) as sender:
        sender.begin(extraction("r")).abort("the cache was not read")
        fake.ended.acquire()
        assert sender.staging.free_bytes == 1024
    assert fake.told == [(NODE, "the cache was not read")]
    assert fake.delivered == []


def test_pd_14_a_request_that_never_got_its_prompt_is_told_of() -> None:
    fake = courier()
    with running(fake) as sender:
        sender.withdraw(Withdrawal("r", NODE, "aborted"))
        fake.ended.acquire()
    assert fake.told == [(NODE, "aborted")]


def test_withdrawing_what_is_on_its_way_cancels_it() -> None:
    fake = courier()
    fake.hold = True
    with running(fake) as sender:
        hand_over = sender.begin(extraction("r"))
        hand_over.send()
        fake.begun.acquire()
        sender.withdraw(Withdrawal("r", NODE, "aborted", extracted=True))
        fake.ended.acquire()
        assert sender.staging.take(1024, timeout=60).offset == 0
    assert fake.cancelled == ["r"]
    assert fake.told == [], "the courier itself tells, while it is cancelled"


def test_withdrawing_what_has_arrived_does_nothing() -> None:
    fake = courier()
    with running(fake) as sender:
        hand_over = sender.begin(extraction("r"))
        hand_over.send()
        hand_over.wait()
        sender.withdraw(Withdrawal("r", NODE, "aborted", extracted=True))
    assert (fake.cancelled, fake.told) == ([], [])


@pytest.mark.parametrize("fault", [NotReady("the decode node has gone"), RuntimeError("a bug")])
def test_a_delivery_that_fails_is_logged_and_frees_its_memory(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    fake = courier()
    fake.fault = fault
    with running(fake) as sender:
        for request_id in ("r", "s"):
            hand_over = sender.begin(extraction(request_id))
            hand_over.send()
            hand_over.wait()
        assert sender.staging.free_bytes == 1024
    assert "request r was not handed over" in caplog.text
    assert "request s was not handed over" in caplog.text


def test_a_delivery_that_takes_too_long_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    fake = courier()
    fake.hold = True
    with running(fake, timeout=0.001) as sender:
        hand_over = sender.begin(extraction("r"))
        hand_over.send()
        hand_over.wait()
    assert fake.cancelled == ["r"]
    assert "request r was not handed over in 0.001 s" in caplog.text


def test_without_memory_the_decode_node_is_told_why() -> None:
    fake = courier(40)
    with running(fake, timeout=0.001) as sender:
        sender.begin(extraction("r"))
        with pytest.raises(Busy, match="no 32 bytes of staging memory"):
            sender.begin(extraction("s"))
        fake.ended.acquire()
    assert [reason.split(" ")[:3] for _, reason in fake.told] == [["no", "32", "bytes"]]


def test_kv_05_a_prompt_that_is_too_long_is_told_of() -> None:
    fake = courier()
    with running(fake) as sender:
        with pytest.raises(ContextLengthExceeded, match="seq_len is 65, above max_seq_len 64"):
            sender.begin(extraction("r", 65))
        fake.ended.acquire()
    assert fake.told[0][1].startswith("seq_len is 65, above max_seq_len 64")


def test_a_node_that_cannot_be_told_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    fake = courier()
    fake.unreachable = True
    with running(fake) as sender:
        sender.withdraw(Withdrawal("r", NODE, "aborted"))
        fake.ended.acquire()
    assert "node cannot be told 'aborted': nobody answers" in caplog.text


def test_closing_gives_up_what_is_on_its_way() -> None:
    fake = courier()
    fake.hold = True
    with running(fake) as sender:
        sender.begin(extraction("r")).send()
        fake.begun.acquire()
        sender.close()
        sender.close()
    assert fake.cancelled == ["r"]
    assert fake.closed


def test_after_its_end_it_refuses_and_holds_no_memory() -> None:
    fake = courier()
    with running(fake) as sender:
        hand_over = sender.begin(extraction("r"))
        sender.close()
        with pytest.raises(NotReady, match="the KV sender is not running"):
            hand_over.send()
        assert sender.staging.free_bytes == 1024
        with pytest.raises(NotReady, match="the KV sender is not running"):
            sender.withdraw(Withdrawal("s", NODE, "aborted"))


def test_a_courier_that_cannot_be_opened_says_why() -> None:
    @asynccontextmanager
    async def broken() -> AsyncGenerator[FakeCourier]:
        raise ConfigError("no such transport")
        yield courier()

    with pytest.raises(ConfigError, match="no such transport"):
        SenderThread(broken, LAYOUT, rank=0, timeout=60)
