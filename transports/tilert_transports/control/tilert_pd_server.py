"""The decode node's control port for TileRT's stock prefill connector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc
from anyio import TASK_STATUS_IGNORED

from .expiry import Expiry
from .listener import DialogueServer
from .reservations import ReservationSettings
from .server import warn_if_open
from .settings import ControlSettings
from .tilert_pd_decode import TilertInbox
from .tilert_pd_session import TilertSession

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from .link import Post
    from .regions import LandingRegion, RegionPool
    from .tilert_pd import TilertHello

__all__ = ("TilertServer",)

_DAY: Final = 86400.0


class TilertServer:
    """Made in the event loop that serves it.

    The dialect knows no key: whoever reaches the port can write, and is warned of.

    :param hello: what to say to a new connection that gets this region.
    :param timeout: seconds for a whole transfer, and then for its cache to be taken; TileRT's
        decode server has 120.
    """

    def __init__(
        self,
        pool: RegionPool,
        hello: Callable[[LandingRegion], TilertHello],
        *,
        incarnation: str,
        max_seq_len: int,
        timeout: float = 120.0,
        lost_writer_time: float = 60.0,
    ) -> None:
        self._expiry = Expiry()
        self.inbox = TilertInbox(
            pool,
            hello,
            incarnation=incarnation,
            max_seq_len=max_seq_len,
            clock=anyio.current_time,
            sooner=self._expiry.sooner,
            settings=ReservationSettings(
                ttl=timeout, max_lifetime=2 * timeout, lost_writer_time=lost_writer_time
            ),
        )
        # There are no heartbeats to be silent between: the dialogue's own deadline ends it.
        self._connections = DialogueServer(self._make, ControlSettings(silence=_DAY))

    async def serve(
        self,
        listeners: Iterable[socket.socket],
        *,
        task_status: anyio.abc.TaskStatus[None] = TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; the listeners are closed then."""
        listening = list(listeners)
        warn_if_open(listening, None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._expiry.run, self.inbox.reservations)
            await self._connections.serve(listening, task_status=task_status)

    def _make(self, number: int, post: Post) -> TilertSession:
        return TilertSession(number, self.inbox, post)
