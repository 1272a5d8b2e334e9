"""One socket and the dialogue that is held over it: bytes both ways, pings, deadlines, the end.

A dialogue is a state machine without I/O: what it has to say it posts, from wherever it is driven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import anyio

from .errors import ControlError, PeerLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import ByteStream

    from .settings import ControlSettings

__all__ = ("Dialogue", "Link", "Post")

_READ_BYTES: Final = 64 * 1024


class Post(Protocol):
    """Queues bytes for the peer. Synchronous; from the event loop's thread."""

    def __call__(self, data: bytes, /) -> None:
        """Queue ``data``."""
        ...


class Dialogue(Protocol):
    """One end of one connection's conversation."""

    @property
    def is_open(self) -> bool:
        """Whether the handshake is over."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether all has been said: the connection may end."""
        ...

    @property
    def next_deadline(self) -> float | None:
        """When ``expire`` has something to do, on the event loop's clock."""
        ...

    def begin(self) -> None:
        """The connection has been made."""
        ...

    def receive(self, data: bytes) -> None:
        """Take bytes.

        :raises ControlError: the connection is to be closed, after what was posted has left.
        """
        ...

    def receive_end(self) -> None:
        """The peer has closed its side.

        :raises ControlError: in the middle of something.
        """
        ...

    def ping(self) -> None:
        """A heartbeat is due."""
        ...

    def expire(self) -> None:
        """The deadline has come.

        :raises ControlError: the connection is to be closed.
        """
        ...

    def end(self, error: ControlError | None) -> None:
        """The connection has ended; None: as it should. Called once."""
        ...


class Link:
    """Runs a dialogue over a stream. Made in the event loop."""

    def __init__(self, settings: ControlSettings) -> None:
        self._settings = settings
        self._unsent = bytearray()
        self._something = anyio.Event()
        self._ending = False
        self._fault: ControlError | None = None
        self._reading = anyio.CancelScope()

    def post(self, data: bytes) -> None:
        """Queue bytes. A peer that has not read 4 MiB of them is lost."""
        if self._ending:
            return
        self._unsent += data
        self._something.set()
        if len(self._unsent) > self._settings.max_unsent_bytes:
            self._break(f"the peer has left {len(self._unsent)} bytes unread")

    def close(self, reason: str) -> None:
        """End the connection from outside, soon."""
        self._break(reason)

    def _break(self, reason: str) -> None:
        self._fault = self._fault or PeerLost(reason)
        self._reading.cancel()

    async def run(self, stream: ByteStream, dialogue: Dialogue) -> ControlError | None:
        """Run to the end of the connection; the stream is closed then.

        :returns: why it ended; None: the dialogue was over, or the peer hung up between messages.
        """
        error: ControlError | None = PeerLost("this node is shutting down")
        try:
            async with stream, anyio.create_task_group() as tasks:
                written = anyio.Event()
                tasks.start_soon(self._write, stream, written.set)
                error = await self._converse(stream, dialogue)
                self._ending = True
                self._something.set()
                with anyio.move_on_after(self._settings.linger):
                    await written.wait()
                tasks.cancel_scope.cancel()
        finally:
            dialogue.end(error)
        return error

    async def _converse(self, stream: ByteStream, dialogue: Dialogue) -> ControlError | None:
        try:
            with self._reading:
                dialogue.begin()
                await self._read(stream, dialogue)
        except ControlError as error:
            return error
        return self._fault

    async def _read(self, stream: ByteStream, dialogue: Dialogue) -> None:
        started = heard = anyio.current_time()
        ping_at = started + self._settings.heartbeat
        while not dialogue.is_over:
            if dialogue.is_open:
                lost_at = heard + self._settings.silence
                silence = f"the peer was silent for {self._settings.silence:g} s"
            else:
                lost_at = started + self._settings.handshake_timeout
                silence = f"no handshake within {self._settings.handshake_timeout:g} s"
            wake_at = min(lost_at, ping_at)
            if dialogue.next_deadline is not None:
                wake_at = min(wake_at, dialogue.next_deadline)
            try:
                data = await _receive(stream, wake_at)
            except anyio.EndOfStream:
                dialogue.receive_end()
                return
            now = anyio.current_time()
            if data:
                heard = now
                dialogue.receive(data)
            elif now >= lost_at:
                raise PeerLost(silence)
            if now >= ping_at:
                ping_at = now + self._settings.heartbeat
                if dialogue.is_open:
                    dialogue.ping()
            if dialogue.next_deadline is not None and now >= dialogue.next_deadline:
                dialogue.expire()

    async def _write(self, stream: ByteStream, written: Callable[[], None]) -> None:
        try:
            while True:
                await self._something.wait()
                self._something = anyio.Event()
                while self._unsent:
                    data = bytes(self._unsent)
                    self._unsent.clear()
                    await stream.send(data)
                if self._ending:
                    return
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self._break(f"the connection broke: {error.__cause__ or error}")
        finally:
            written()


async def _receive(stream: ByteStream, until: float) -> bytes:
    """Some bytes; none if the time is up."""
    with anyio.move_on_at(until):
        try:
            return await stream.receive(_READ_BYTES)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise PeerLost(f"the connection broke: {error.__cause__ or error}") from error
    return b""
