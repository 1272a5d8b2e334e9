"""The task that ends leases on time: it sleeps until the next deadline, or until a nearer one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from .reservations import Reservations

__all__ = ("Expiry",)


class Expiry:
    """Made in the event loop."""

    def __init__(self) -> None:
        self._sooner = anyio.Event()

    def sooner(self) -> None:
        """The next deadline may have come closer."""
        self._sooner.set()

    async def run(self, reservations: Reservations) -> None:
        """Expire what is due, until cancelled."""
        while True:
            self._sooner = anyio.Event()
            deadline = reservations.next_deadline
            with anyio.move_on_at(float("inf") if deadline is None else deadline):
                await self._sooner.wait()
            reservations.expire()
