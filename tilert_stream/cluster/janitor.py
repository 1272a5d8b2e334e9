"""Work that outlives its request: bounded in number and in time, waited for by nobody.

In: ``submit`` from a lease's synchronous release. What must await happens here: telling a node that
its request has ended, reading a late body to its end.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyio import AsyncContextManagerMixin, Event, move_on_after

from ..background import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from anyio.abc import TaskGroup

__all__ = ("Janitor",)

logger = logging.getLogger(__name__)


class Janitor(AsyncContextManagerMixin):
    """Enter it once, before the first request.

    :param capacity: pieces of work at a time; what comes beyond is abandoned at once.
    :param within: seconds for each.
    :param farewell: seconds that leaving waits for what is there.
    """

    def __init__(self, *, capacity: int = 1024, within: float = 5.0, farewell: float = 2.0) -> None:
        self._capacity = capacity
        self._within = within
        self._farewell = farewell
        self._tasks: TaskGroup | None = None
        self._open: dict[object, Callable[[], None]] = {}
        self._empty = Event()
        self.abandoned_total = 0

    @property
    def busy(self) -> int:
        """Pieces of work not done yet."""
        return len(self._open)

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Janitor]:
        try:
            async with background_tasks() as self._tasks:
                yield self
                await self._take_leave()
        finally:
            self._tasks = None
            # A task that is cancelled before its first step runs no ``finally`` of its own.
            for abandon in tuple(self._open.values()):
                abandon()
            self._open.clear()

    async def _take_leave(self) -> None:
        if self._open:
            self._empty = Event()
            with move_on_after(self._farewell):
                await self._empty.wait()

    def submit(
        self,
        name: str,
        work: Callable[[], Awaitable[object]],
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        """Do ``work`` some time; never raises, never waits.

        :param name: what it is called in the log.
        :param abandon: called in its place, or after it has failed or taken too long.
        """
        if self._tasks is None or len(self._open) >= self._capacity:
            self.abandoned_total += 1
            logger.warning("%s is abandoned: %d others are being done", name, len(self._open))
            abandon()
            return
        key = object()
        self._open[key] = abandon
        self._tasks.start_soon(self._do, key, name, work, name=name)

    async def _do(self, key: object, name: str, work: Callable[[], Awaitable[object]]) -> None:
        done = False
        try:
            with move_on_after(self._within):
                await work()
                done = True
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody waits for this
            logger.info("%s: %s", name, error)
        finally:
            abandon = self._open.pop(key, None)
            if not done and abandon is not None:
                self.abandoned_total += 1
                abandon()
            if not self._open:
                self._empty.set()
