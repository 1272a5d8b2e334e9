"""Both sessions joined by a pipe, on a clock that jumps."""

from __future__ import annotations

import anyio
import pytest
from trio.testing import MockClock

from tilert_transports.control.errors import ControlError, GrantGone
from tilert_transports.control.expiry import Expiry
from tilert_transports.control.landing import Landings
from tilert_transports.control.link import Link
from tilert_transports.control.messages import Message
from tilert_transports.control.receiver import Receiver
from tilert_transports.control.regions import RegionPool
from tilert_transports.control.sender import HandOffState
from tilert_transports.control.session import DecodeSession, PrefillSession
from tilert_transports.control.settings import ControlSettings

from .ledger import claim_of, make_regions
from .nodes import DECODE, PREFILL
from .pipe import pipe

AUTOJUMP: list[tuple[str, dict[str, object]]] = [
    ("trio", {"clock": MockClock(autojump_threshold=0)})
]
pytestmark = pytest.mark.parametrize("anyio_backend", AUTOJUMP, ids=["autojump"])


class Joined:
    """A decode node with one prefill node. Heartbeats every 5 s, leases of 30 s."""

    def __init__(self) -> None:
        settings = ControlSettings()
        self.expiry = Expiry()
        self.landings = Landings(
            RegionPool(make_regions(3), slots=1),
            incarnation=DECODE.incarnation,
            max_seq_len=8192,
            send=self._send,
            clock=anyio.current_time,
            sooner=self.expiry.sooner,
        )
        receiver = Receiver(self.landings.reservations, (0,), self._send)
        self.decode_link, self.prefill_link = Link(settings), Link(settings)
        self.decode = DecodeSession(
            1, receiver, DECODE, None, self.decode_link.post, 1 << 20, lambda: None
        )
        self.opened = anyio.Event()
        self.lost: list[ControlError] = []
        self.prefill = PrefillSession(
            PREFILL,
            None,
            self.prefill_link.post,
            anyio.current_time,
            self.opened.set,
            self.lost.append,
        )
        self.streams = pipe()

    def _send(self, peer: int, message: Message) -> None:
        assert peer == 1
        self.decode.send(message)

    async def run(self, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(self.expiry.run, self.landings.reservations)
        tasks.start_soon(self.decode_link.run, self.streams[0], self.decode)
        tasks.start_soon(self.prefill_link.run, self.streams[1], self.prefill)
        await self.opened.wait()


async def test_heartbeats_keep_a_lease_that_is_shorter_than_the_write() -> None:
    joined = Joined()
    async with anyio.create_task_group() as tasks:
        await joined.run(tasks)
        assert joined.decode.peer is not None
        landing = joined.landings.reserve("a1", 1000)
        hand_off = joined.prefill.sender.claim(claim_of(landing.granted), lambda: None)
        await anyio.sleep(500)
        assert hand_off.state is HandOffState.WRITING
        joined.prefill.sender.commit(hand_off)
        assert (await landing.wait()).request == "a1"
        tasks.cancel_scope.cancel()


async def test_a_reservation_that_nobody_renews_expires_to_the_second() -> None:
    joined = Joined()
    async with anyio.create_task_group() as tasks:
        await joined.run(tasks)
        start = anyio.current_time()
        landing = joined.landings.reserve("a1", 1000)
        await anyio.sleep(20)
        landing.renew()
        with pytest.raises(GrantGone, match="its KV cache never came"):
            await landing.wait()
        assert anyio.current_time() == start + 50
        tasks.cancel_scope.cancel()


async def test_the_longest_life_ends_a_write_on_both_sides() -> None:
    joined = Joined()
    async with anyio.create_task_group() as tasks:
        await joined.run(tasks)
        start = anyio.current_time()
        landing = joined.landings.reserve("a1", 1000)
        hand_off = joined.prefill.sender.claim(claim_of(landing.granted), lambda: None)
        with pytest.raises(GrantGone):
            await landing.wait()
        assert anyio.current_time() == start + 600
        await anyio.wait_all_tasks_blocked()
        assert hand_off.state is HandOffState.STOPPING
        assert joined.landings.statistics().quarantined == 1
        joined.prefill.sender.stopped(hand_off)
        await anyio.wait_all_tasks_blocked()
        assert joined.landings.statistics().free == 3
        tasks.cancel_scope.cancel()
