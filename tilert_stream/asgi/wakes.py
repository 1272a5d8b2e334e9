"""A stream's wakes on their way to ``send``: with comments in its silences, or past ``send``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from anyio import move_on_after

from ..lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ..stream import Stream
    from .disconnect import DisconnectListener

    Start = Mapping[str, object]

__all__ = ("HEARTBEAT", "SEND_NOW", "Heartbeats", "SendNow", "SentNow")

HEARTBEAT: Final = b": still here\n\n"
"""A comment (WHATWG HTML, 9.2.6). Nothing but comments is safe for clients, and not for all."""

SEND_NOW: Final = "tilert_stream.send_now"
"""Our own server's extension: a part of a body is written by a plain call."""


class SendNow(Protocol):
    """That call. What it returns must be awaited before the next one."""

    def __call__(
        self, body: bytes, start: Start | None = None, *, last: bool = False
    ) -> Callable[[], Awaitable[None]] | None:
        """:param start: the message that begins the answer, with its first part."""
        ...


class Heartbeats:
    """What a stream yields, and a comment after each silence of so many seconds.

    A request that still waits for a slot gets none: its refusal is to be a real HTTP status.
    """

    def __init__(self, stream: Stream[bytes], seconds: float) -> None:
        self._stream = stream
        self._seconds = seconds

    def __aiter__(self) -> Heartbeats:
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            with move_on_after(self._seconds):
                return await anext(self._stream)
            if self._stream.scope.lifecycle.state is not State.QUEUED:
                return [HEARTBEAT]


class SentNow:
    """What of a stream is not sent already: the last items, of a short answer or a failed one.

    :param start: makes the message that begins the answer.
    :param listener: is told that the end is about to be sent.
    """

    __slots__ = ("_begun", "_listener", "_rest", "_send_now", "_start", "_stream")

    def __init__(
        self,
        stream: Stream[bytes],
        send_now: SendNow,
        start: Callable[[], Start],
        listener: DisconnectListener,
    ) -> None:
        self._stream = stream
        self._send_now = send_now
        self._start = start
        self._listener = listener
        self._begun = False
        self._rest: Callable[[], Awaitable[None]] | None = None

    def __aiter__(self) -> SentNow:
        return self

    async def __anext__(self) -> list[bytes]:
        while self._stream.outcome is None:
            try:
                last = await self._stream.forward(self._send, self._finish)
            finally:
                # Cancelled, too: the server must know that what it has begun stays unfinished.
                if self._rest is not None:
                    rest, self._rest = self._rest, None
                    await rest()
            if last:
                return last
        raise StopAsyncIteration

    def _send(self, items: list[bytes]) -> bool:
        """Send ``items``; whether more can follow at once."""
        start = None
        if not self._begun:
            self._begun = True
            start = self._start()
        self._rest = self._send_now(b"".join(items), start)
        return self._rest is None

    def _finish(self, items: list[bytes]) -> bool:
        """Send the last items, if nothing else is to be said with them; whether it has."""
        outcome = self._stream.outcome
        if not self._begun or outcome is None or outcome.error is not None:
            return False
        self._listener.over = True
        self._rest = self._send_now(b"".join(items), last=True)
        return True
