"""The prefill node's connection to one decode node's control port, and hand-offs over it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.abc
from anyio import TASK_STATUS_IGNORED

from tilert_stream.errors import TilertStreamError

from .errors import HandOffFailed, PeerLost
from .link import Link
from .sender import HandOffState
from .session import PrefillSession
from .settings import ControlSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .auth import ClusterKey
    from .errors import ControlError
    from .grant_id import GrantId
    from .hello import Hello
    from .messages import Claim, Grant
    from .sender import HandOff

__all__ = ("ControlClient", "Drain", "Progressing", "Write")

Progressing: TypeAlias = "Callable[[int], None]"
"""Says that so many planes have landed."""
Write: TypeAlias = "Callable[[Grant, Progressing], Awaitable[int | None]]"
"""Writes all that was claimed into the grant; returns its CRC-32, or None. Cancelled when the
decode node gives up, or the lease runs out."""
Drain: TypeAlias = "Callable[[], Awaitable[bool]]"
"""Waits until nothing of a write that was given up can land any more; False if nobody can know."""

logger = logging.getLogger(__name__)


class ControlClient:
    """One connection. Its ``run`` is a task of the node's; hand-offs come from any task."""

    def __init__(
        self,
        host: str,
        port: int,
        hello: Hello,
        *,
        key: ClusterKey | None = None,
        settings: ControlSettings | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._hello = hello
        self._key = key
        self._settings = settings or ControlSettings()
        self._link: Link | None = None
        self._session: PrefillSession | None = None
        self._lost: ControlError | None = None

    @property
    def peer(self) -> Hello:
        """The decode node: its layout, incarnation and transport card.

        :raises PeerLost: the connection is not open.
        """
        session = self._open()
        assert session.peer is not None  # noqa: S101 - an open session has one
        return session.peer

    @property
    def is_open(self) -> bool:
        """Whether hand-offs can be made now."""
        return self._session is not None and self._lost is None

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Connect, and serve the connection to its end. Started once the handshake is over.

        A connection that is lost later is logged, and fails the hand-offs in it; this returns.

        :raises PeerLost: nobody answers there.
        :raises HandshakeRefused: the two nodes do not fit together.
        :raises ControlError: what answers is no decode node.
        """
        where = f"{self._host} port {self._port}"
        try:
            with anyio.fail_after(self._settings.handshake_timeout):
                stream = await anyio.connect_tcp(self._host, self._port)
        except OSError as error:
            fault = str(error) or f"no answer within {self._settings.handshake_timeout:g} s"
            self._lost = PeerLost(f"no decode node answers at {where}: {fault}")
            raise self._lost from error
        opened = False

        def on_open() -> None:
            nonlocal opened
            opened = True
            self._session = session
            task_status.started()

        self._link = link = Link(self._settings)
        session = PrefillSession(
            self._hello, self._key, link.post, anyio.current_time, on_open, self._ended
        )
        reason = await link.run(stream, session)
        if not opened:
            raise reason or PeerLost(f"the decode node at {where} has closed the connection")
        logger.info("control connection to %s ended: %s", where, reason)

    def close(self) -> None:
        """End the connection, and with it all hand-offs. Idempotent."""
        if self._link is not None:
            self._link.close("this node has closed the connection")

    def _ended(self, error: ControlError) -> None:
        self._lost = error

    def _open(self) -> PrefillSession:
        if self._lost is not None:
            raise PeerLost(self._lost.message) from self._lost
        if self._session is None:
            raise PeerLost(f"not connected to {self._host} port {self._port} yet")
        return self._session

    def decline(self, grant: GrantId, reason: str) -> None:
        """Tell the decode node that nothing will come for ``grant``. Sync.

        :raises PeerLost: the connection has ended.
        """
        self._open().sender.decline(grant, reason)

    async def hand_off(self, claim: Claim, write: Write, drain: Drain) -> None:
        """Claim a grant, write, commit, and wait until the decode node has taken it.

        Cancelling gives it up: the decode node is told at once, and told again when ``drain`` says
        that nothing can land any more.

        :raises GrantGone: nobody waits for it at the decode node any more.
        :raises HandOffFailed: the decode node gave up, or the lease ran out.
        :raises PeerLost: the connection has ended.
        :raises Exception: what ``write`` raised; the decode node has been told.
        """
        sender = self._open().sender
        watch = _Watch()
        hand_off = sender.claim(claim, lambda: watch.note(hand_off.state))
        committed = False
        try:
            await watch.wait_while(hand_off, HandOffState.CLAIMED)
            checksum = None
            if hand_off.grant is not None:
                with watch.writing:
                    checksum = await write(
                        hand_off.grant, lambda planes: sender.progress(hand_off, planes)
                    )
            _expect(hand_off, HandOffState.WRITING)
            sender.commit(hand_off, checksum)
            committed = True
            await watch.wait_while(hand_off, HandOffState.COMMITTED)
            _expect(hand_off, HandOffState.DONE)
        except BaseException as error:
            granted = hand_off.grant is not None
            sender.abort(hand_off, _reason(error), settled=not granted)
            if granted and not committed:
                with (
                    anyio.CancelScope(shield=True),
                    anyio.move_on_after(self._settings.drain_timeout),
                ):
                    if await drain():
                        sender.stopped(hand_off)
            raise


class _Watch:
    """Lets a task wait for a hand-off's next state, and write for as long as it may."""

    def __init__(self) -> None:
        self.writing = anyio.CancelScope()
        self._changed = anyio.Event()

    def note(self, state: HandOffState) -> None:
        self._changed.set()
        if state is not HandOffState.WRITING:
            self.writing.cancel()

    async def wait_while(self, hand_off: HandOff, state: HandOffState) -> None:
        while hand_off.state is state:
            self._changed = anyio.Event()
            await self._changed.wait()


def _expect(hand_off: HandOff, state: HandOffState) -> None:
    if hand_off.state is not state:
        raise hand_off.error or HandOffFailed(f"the hand-off is {hand_off.state.value}")


def _reason(error: BaseException) -> str:
    """Why, in words that may leave this node: only our own errors are written for others."""
    if isinstance(error, TilertStreamError):
        return error.message
    if isinstance(error, Exception):
        return f"writing failed ({type(error).__name__})"
    return "the hand-off was cancelled"
