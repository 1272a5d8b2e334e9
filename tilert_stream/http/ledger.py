"""The open connections of a server, counted: who is there, who is idle, when the last one left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.lowlevel

__all__ = ("Ledger", "Member", "ServerStatistics")


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """A server's connections and requests: now, and since it was made."""

    connections: int
    """Open now."""
    requests: int
    """Being answered now."""
    accepted_total: int
    requests_total: int
    """Handed to the app."""
    refused_total: int
    """Answered by the server itself with a 4xx or 5xx."""
    gone_total: int
    """Whose client left before the answer had ended."""
    cut_total: int
    """Whose answer the server ended short."""


class Member(Protocol):
    """An open connection."""

    def close(self) -> None:
        """Close the socket now. Idempotent."""
        ...

    def close_if_idle(self) -> None:
        """End the connection if it carries no request."""
        ...


class Ledger:
    """Keeps count; connections enter and leave, the listener and the drain wait for them."""

    def __init__(self) -> None:
        self.draining = False
        self.members: set[Member] = set()
        self.requests = 0
        self.accepted_total = 0
        self.requests_total = 0
        self.refused_total = 0
        self.gone_total = 0
        self.cut_total = 0
        self._left = anyio.Event()

    def enter(self, member: Member) -> None:
        """Count a new connection."""
        self.members.add(member)
        self.accepted_total += 1

    def leave(self, member: Member) -> None:
        """Forget a closed connection, and wake who waits for one to close."""
        self.members.discard(member)
        self._left.set()
        self._left = anyio.Event()

    async def wait_leave(self) -> None:
        """Wait until some connection closes."""
        await self._left.wait()

    async def wait_empty(self) -> None:
        """Wait until no connection is open."""
        await anyio.lowlevel.checkpoint()
        while self.members:
            await self._left.wait()

    def drain(self) -> None:
        """Let no connection begin another request."""
        self.draining = True
        for member in tuple(self.members):
            member.close_if_idle()

    def statistics(self) -> ServerStatistics:
        """Count now."""
        return ServerStatistics(
            connections=len(self.members),
            requests=self.requests,
            accepted_total=self.accepted_total,
            requests_total=self.requests_total,
            refused_total=self.refused_total,
            gone_total=self.gone_total,
            cut_total=self.cut_total,
        )
