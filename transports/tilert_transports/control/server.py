"""The decode node's control port in our own dialect: prefill nodes in, landings out."""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from anyio import TASK_STATUS_IGNORED

from .expiry import Expiry
from .landing import Landing, Landings
from .listener import DialogueServer
from .receiver import Receiver
from .session import DecodeSession
from .settings import ControlSettings

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from .auth import ClusterKey
    from .hello import Hello
    from .link import Post
    from .messages import Message
    from .prompt import PromptIdentity
    from .regions import RegionPool
    from .reservations import ReservationSettings

__all__ = ("ControlServer", "warn_if_open")

logger = logging.getLogger(__name__)


def warn_if_open(listeners: Iterable[socket.socket], key: ClusterKey | None) -> None:
    """Warn of a control port that strangers can reach, and that asks nobody for a key."""
    for listener in listeners:
        host, port = listener.getsockname()[:2]
        if key is None and not ip_address(host.partition("%")[0]).is_loopback:
            logger.warning(
                "the control port listens on %s port %d without a cluster key: whoever reaches it"
                " can write KV caches; set --cluster-key, or bind it to a loopback address",
                host,
                port,
            )


class ControlServer:
    """Made in the event loop that serves it.

    :param hello: this node's description.
    :param pool: where KV caches land.
    :param sender_ranks: the ranks of prefill that send; a cache has landed with the last of them.
    :param key: the cluster's; None takes everybody in.
    """

    def __init__(
        self,
        hello: Hello,
        pool: RegionPool,
        *,
        sender_ranks: Iterable[int] = (0,),
        key: ClusterKey | None = None,
        settings: ControlSettings | None = None,
        reservation_settings: ReservationSettings | None = None,
    ) -> None:
        self._hello = hello
        self._key = key
        self._settings = settings or ControlSettings()
        self._sessions: dict[int, DecodeSession] = {}
        self._expiry = Expiry()
        self.landings = Landings(
            pool,
            incarnation=hello.incarnation,
            max_seq_len=hello.max_seq_len,
            send=self._send,
            clock=anyio.current_time,
            sooner=self._expiry.sooner,
            settings=reservation_settings,
        )
        self.receiver = Receiver(self.landings.reservations, sender_ranks, self._send)
        self._connections = DialogueServer(self._make, self._settings)

    @property
    def connections(self) -> int:
        """Open now."""
        return self._connections.connections

    def reserve(
        self,
        request: str,
        max_tokens: int,
        prompt: PromptIdentity | None = None,
        *,
        generation: int | None = None,
    ) -> Landing:
        """Hold a landing region for ``request``; see ``Landings.reserve``.

        :param generation: what the router would have it called; see ``refuse``.
        """
        landing = self.landings.reserve(request, max_tokens, prompt, generation=generation)
        self.receiver.admit_early(landing.granted.generation)
        return landing

    def refuse(self, generation: int) -> None:
        """Turn away whoever comes for a grant that a router has named and will not be given."""
        self.receiver.refuse_early(generation)

    async def serve(
        self,
        listeners: Iterable[socket.socket],
        *,
        task_status: anyio.abc.TaskStatus[None] = TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; the listeners are closed then."""
        listening = list(listeners)
        warn_if_open(listening, self._key)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._expiry.run, self.landings.reservations)
            await self._connections.serve(listening, task_status=task_status)

    def _make(self, number: int, post: Post) -> DecodeSession:
        session = DecodeSession(
            number,
            self.receiver,
            self._hello,
            self._key,
            post,
            self._settings.max_handshake_bytes,
            lambda: self._forget(number),
        )
        self._sessions[number] = session
        return session

    def _forget(self, number: int) -> None:
        del self._sessions[number]

    def _send(self, peer: int, message: Message) -> None:
        self._sessions[peer].send(message)
