"""Reservations kept alive while prefill works: one task a node, whatever their number.

In: ``keep`` from a request's task. Out: renewals, and a call where a reservation is lost.

A grant is renewed by the clock, and whenever the node has ended an idle connection: a process that
dies is known at once. The task stays when no grant is kept: the next one then costs no task, no
timer and no look at a socket.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Final

from anyio import AsyncContextManagerMixin, CancelScope, Event, current_time

from ..background import background_tasks
from ..errors import TilertStreamError
from ..http.client.errors import ConnectFailed, UpstreamClosed
from .errors import ReservationLost

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskGroup

    from ..http.client import Origin
    from .decode_call import DecodeCall
    from .grant import Grant

__all__ = ("Keeper", "Kept")

logger = logging.getLogger(__name__)

RENEWALS: Final = 3
"""So many tries fit into a grant's time."""

_FINAL: Final = (ReservationLost, ConnectFailed, UpstreamClosed)
"""The slot is gone, alone or with its node: no further try would bring it back."""


class Kept:
    """One grant, kept until ``stop``."""

    __slots__ = ("_stop", "due", "failures", "grant", "lost")

    def __init__(
        self,
        grant: Grant,
        lost: Callable[[TilertStreamError], object],
        stop: Callable[[Kept], object],
    ) -> None:
        self.grant = grant
        self.lost = lost
        self.failures = 0
        self.due = current_time() + self.pause
        """When it is renewed next, on anyio's clock."""
        self._stop = stop

    @property
    def pause(self) -> float:
        """Seconds from one renewal to the next."""
        return self.grant.ttl / RENEWALS

    def stop(self) -> None:
        """Keep it no longer. Sync, idempotent."""
        self._stop(self)


class Keeper(AsyncContextManagerMixin):
    """Enter it once, before the first request."""

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None
        self._watches: dict[Origin, _Watch] = {}

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Keeper]:
        try:
            async with background_tasks() as self._tasks:
                yield self
        finally:
            self._tasks = None
            self._watches.clear()

    def keep(
        self, node: DecodeCall, grant: Grant, lost: Callable[[TilertStreamError], object]
    ) -> Kept:
        """Keep ``grant`` alive. Sync.

        :param lost: called once, from a task of this keeper, with ``ReservationLost`` if the node
            does not hold it any more, or with why the node has not renewed it in all its time.
        :raises RuntimeError: the keeper has not been entered.
        """
        if self._tasks is None:
            raise RuntimeError("the keeper must be entered before it keeps anything")
        watch = self._watches.get(node.origin)
        if watch is None:
            watch = self._watches[node.origin] = _Watch(node, self._tasks)
            self._tasks.start_soon(watch.run, name=f"keeper of {node.address}")
        return watch.add(grant, lost)


class _Watch:
    """What is kept at one node."""

    def __init__(self, node: DecodeCall, tasks: TaskGroup) -> None:
        self._node = node
        self._tasks = tasks
        self._kept: set[Kept] = set()
        self._arrival = Event()
        self._sleep: CancelScope | None = None
        # Whether no connection tells of the node's death at present.
        self._blind = True

    def add(self, grant: Grant, lost: Callable[[TilertStreamError], object]) -> Kept:
        kept = Kept(grant, lost, self._kept.discard)
        self._kept.add(kept)
        self._arrival.set()
        # A request has just used a connection, which is idle by now.
        self._wake_at(-inf if self._blind else kept.due)
        return kept

    def _wake_at(self, moment: float) -> None:
        if self._sleep is not None and moment < self._sleep.deadline:
            self._sleep.deadline = moment

    async def run(self) -> None:
        """Renew what is due, until cancelled."""
        client, origin = self._node.client, self._node.origin
        while True:
            if not self._kept:
                self._arrival = Event()
                await self._arrival.wait()
            ended = False
            due = min((kept.due for kept in self._kept), default=inf)
            with CancelScope(deadline=due) as self._sleep:
                self._blind = not client.has_idle(origin)
                await client.wait_closed(origin)
                ended = True
            self._sleep = None
            now = current_time()
            for kept in tuple(self._kept):
                if kept.due <= now or (ended and kept.due < inf):
                    kept.due = inf
                    self._tasks.start_soon(self._renew, kept, name="renewal")

    async def _renew(self, kept: Kept) -> None:
        try:
            await self._node.renew(kept.grant)
        except TilertStreamError as error:
            kept.failures += 1
            if isinstance(error, _FINAL) or kept.failures == RENEWALS:
                if kept in self._kept:
                    self._kept.discard(kept)
                    kept.lost(error)
                return
            logger.info("%s: not renewed: %s", self._node.address, error)
        else:
            kept.failures = 0
        kept.due = current_time() + kept.pause
        self._wake_at(kept.due)
