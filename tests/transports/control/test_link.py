"""Times and ends of a connection, on a clock that jumps."""

from __future__ import annotations

import anyio
import pytest
from trio.testing import MockClock

from tilert_stream.errors import ConfigError
from tilert_transports.control.errors import ControlError, FrameError, PeerLost
from tilert_transports.control.link import Link
from tilert_transports.control.settings import ControlSettings

from .pipe import Pipe, pipe

AUTOJUMP: list[tuple[str, dict[str, object]]] = [
    ("trio", {"clock": MockClock(autojump_threshold=0)})
]
autojump = pytest.mark.parametrize("anyio_backend", AUTOJUMP, ids=["autojump"])

SETTINGS = ControlSettings(handshake_timeout=10, heartbeat=5, silence=20, linger=1)


class Echo:
    """A dialogue that notes what happens to it, and answers what it is told to."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.is_open = True
        self.is_over = False
        self.next_deadline: float | None = None
        self.events: list[tuple[float, str]] = []
        self.ended: list[ControlError | None] = []
        self.answers: dict[bytes, bytes] = {}
        self.raises: ControlError | None = None

    def _note(self, event: str) -> None:
        self.events.append((anyio.current_time() - self.started, event))

    def begin(self) -> None:
        self.started = anyio.current_time()
        self.link.post(b"hello")

    def receive(self, data: bytes) -> None:
        self._note(data.decode())
        if data in self.answers:
            self.link.post(self.answers[data])
        if self.raises is not None:
            raise self.raises

    def receive_end(self) -> None:
        self._note("end")

    def ping(self) -> None:
        self._note("ping")

    def expire(self) -> None:
        self._note("expire")
        self.next_deadline = None

    def end(self, error: ControlError | None) -> None:
        self.ended.append(error)


class Running:
    """A link at work on one end of a pipe."""

    def __init__(self, settings: ControlSettings = SETTINGS) -> None:
        self.ours, self.theirs = pipe()
        self.link = Link(settings)
        self.echo = Echo(self.link)
        self.result: ControlError | None = None

    async def run(self) -> None:
        self.result = await self.link.run(self.ours, self.echo)


async def said(stream: Pipe) -> bytes:
    """All that comes until the other side closes."""
    data = b""
    try:
        while True:
            data += await stream.receive()
    except anyio.EndOfStream:
        return data


async def test_what_is_posted_leaves_in_order_and_an_end_between_messages_is_none() -> None:
    running = Running()
    running.echo.answers = {b"a": b"A", b"b": b"B"}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        assert await running.theirs.receive() == b"hello"
        await running.theirs.send(b"a")
        assert await running.theirs.receive() == b"A"
        await running.theirs.send(b"b")
        assert await running.theirs.receive() == b"B"
        await running.theirs.aclose()
    assert [event for _, event in running.echo.events] == ["a", "b", "end"]
    assert running.result is None
    assert running.echo.ended == [None]


async def test_the_last_words_leave_before_the_connection_is_closed() -> None:
    running = Running()
    running.echo.answers = {b"x": b"refused"}
    running.echo.raises = FrameError("garbage")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        await running.theirs.send(b"x")
        assert await said(running.theirs) == b"hellorefused"
    assert running.result is running.echo.raises
    assert running.echo.ended == [running.echo.raises]


async def test_a_dialogue_that_is_over_closes() -> None:
    running = Running()
    running.echo.is_over = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        assert await said(running.theirs) == b"hello"
    assert running.result is None


@pytest.mark.parametrize("before", [True, False])
async def test_closing_from_outside(before: bool) -> None:
    running = Running()
    if before:
        running.link.close("shutting down")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        assert (await running.theirs.receive()) == b"hello"
        running.link.close("shutting down")
    assert isinstance(running.result, PeerLost)
    assert running.result.message == "shutting down"
    running.link.post(b"too late")


async def test_cancelling_ends_the_dialogue_too() -> None:
    running = Running()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        await running.theirs.receive()
        tasks.cancel_scope.cancel()
    (error,) = running.echo.ended
    assert isinstance(error, PeerLost)
    with pytest.raises(anyio.EndOfStream):
        await running.theirs.receive()


async def test_a_peer_that_does_not_read_is_lost() -> None:
    running = Running(ControlSettings(max_unsent_bytes=1000, linger=0.01))
    running.theirs.stop_reading()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        await anyio.wait_all_tasks_blocked()
        running.link.post(b"x" * 900)
        await anyio.wait_all_tasks_blocked()
        running.link.post(b"x" * 101)
    assert isinstance(running.result, PeerLost)
    assert "has left 1001 bytes unread" in running.result.message


async def test_a_broken_connection_is_a_lost_peer() -> None:
    running = Running()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        await anyio.wait_all_tasks_blocked()
        await running.ours.aclose()
    assert isinstance(running.result, PeerLost)
    assert "the connection broke" in running.result.message


@autojump
async def test_a_handshake_takes_at_most_ten_seconds_whatever_comes() -> None:
    running = Running()
    running.echo.is_open = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        for _ in range(3):
            await anyio.sleep(3)
            await running.theirs.send(b"x")
        await said(running.theirs)
    assert isinstance(running.result, PeerLost)
    assert running.result.message == "no handshake within 10 s"
    assert [event for _, event in running.echo.events] == ["x", "x", "x"], "no pings yet"


@autojump
async def test_heartbeats_come_every_five_seconds_and_silence_ends_after_twenty() -> None:
    running = Running()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        await anyio.sleep(7)
        await running.theirs.send(b"x")
        await said(running.theirs)
    assert running.echo.events == [
        (5, "ping"),
        (7, "x"),
        (10, "ping"),
        (15, "ping"),
        (20, "ping"),
        (25, "ping"),
    ]
    assert isinstance(running.result, PeerLost)
    assert running.result.message == "the peer was silent for 20 s"


@autojump
async def test_heartbeats_come_also_while_the_peer_talks() -> None:
    running = Running()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        for _ in range(7):
            await anyio.sleep(2)
            await running.theirs.send(b"x")
        await running.theirs.aclose()
    pings = [at for at, event in running.echo.events if event == "ping"]
    assert pings == [5, 10]


@autojump
async def test_a_deadline_comes_on_time() -> None:
    running = Running()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        await anyio.wait_all_tasks_blocked()
        running.echo.next_deadline = running.echo.started + 7
        await anyio.sleep(8)
        await running.theirs.aclose()
    assert (7, "expire") in running.echo.events


@pytest.mark.parametrize(
    ("name", "value"), [("heartbeat", 0), ("silence", -1), ("max_connections", 0)]
)
def test_settings_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}; it must be above 0") as caught:
        ControlSettings(**{name: value})  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - one field by its name
    assert caught.value.param == name


def test_silence_leaves_room_for_a_lost_heartbeat() -> None:
    with pytest.raises(ConfigError, match="at least twice the heartbeat"):
        ControlSettings(heartbeat=11, silence=20)
