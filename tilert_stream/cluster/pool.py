"""Nodes of one kind: which to ask next, who is busy, who is dead.

In: the outcomes of attempts. Out: the order of the next ones. Free nodes come first, those with
fewest requests of ours, in turn; a node that did not answer, or said that it has failed, comes last
for a while: it fails faster than others serve, and would draw all requests else. A node's 4xx, its
429 and its 503 say nothing of its health.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from anyio import Event

from ..errors import Busy, ConfigError, NotReady
from ..http.client.errors import (
    ConnectFailed,
    UpstreamClosed,
    UpstreamError,
    UpstreamInvalid,
    UpstreamTimeout,
)
from .errors import DecodeFailed, HandOverLost, HandshakeRefused, NodeFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..errors import TilertStreamError

__all__ = ("Member", "NodeStatus", "Pool", "Visit")

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_SICK = (
    ConnectFailed,
    DecodeFailed,
    NodeFailed,
    UpstreamClosed,
    UpstreamInvalid,
    UpstreamTimeout,
)
_UNREACHED = (Busy, NotReady, ConnectFailed, UpstreamClosed, HandshakeRefused, HandOverLost)
"""The request was not begun, or its work is lost with the node: another may be asked."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node, as this router sees it."""

    name: str
    requests: int
    """Of this router, on that node now."""
    answers: bool
    """Whether its last answer was one, and no 5xx about itself."""


class Visit:
    """One request on one node, until ``leave``."""

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        """Count it no more. Sync, idempotent."""
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave()


class Member(Generic[T]):
    """A node in a pool."""

    __slots__ = ("_left", "name", "node", "requests", "shunned_until")

    def __init__(self, name: str, node: T) -> None:
        self.name = name
        self.node = node
        self.requests = 0
        """Of this router, on that node now."""
        self.shunned_until = 0.0
        self._left: Event | None = None
        """Somebody waits until a request has left."""

    def visit(self) -> Visit:
        """Count one request more."""
        self.requests += 1
        return Visit(self._count_one_less)

    def _count_one_less(self) -> None:
        self.requests -= 1
        if self._left is not None:
            left, self._left = self._left, None
            left.set()

    async def wait_left(self) -> None:
        """Wait until a request of this router has left the node."""
        if self._left is None:
            self._left = Event()
        await self._left.wait()


class Pool(Generic[T]):
    """The nodes of one kind.

    :param kind: what they are called in errors, such as ``decode``.
    :param nodes: by name.
    :param shun: seconds for which a node that did not answer, or has failed, comes last.
    :param clock: monotonic seconds.
    :raises ~tilert_stream.errors.ConfigError: there is none.
    """

    def __init__(
        self,
        kind: str,
        nodes: Sequence[tuple[str, T]],
        *,
        shun: float = 5.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if not nodes:
            raise ConfigError(f"there is no {kind} node; name at least one (--{kind})", param=kind)
        self.kind = kind
        self.members = tuple(Member(name, node) for name, node in nodes)
        self.shun = shun
        self._clock = clock
        self._turn = 0

    @property
    def where(self) -> str:
        """How a pipeline prints it."""
        return f"{self.kind} {', '.join(member.name for member in self.members)}"

    def order(self, first: Member[T] | None = None) -> list[Member[T]]:
        """Whom to ask, one after another.

        :param first: has been chosen before; nobody's turn has come then.
        """
        order = self._ordered(first)
        self._turn += first is None
        return order

    def next(self) -> Member[T]:
        """Whom to ask first; its turn has come only with ``take_turn``."""
        return self._ordered(None)[0]

    def take_turn(self) -> None:
        """Whoever was to be asked first has been."""
        self._turn += 1

    def _ordered(self, first: Member[T] | None) -> list[Member[T]]:
        turn = self._turn % len(self.members)
        now = self._clock()
        return sorted(
            self.members[turn:] + self.members[:turn],
            key=lambda member: (member is not first, member.shunned_until > now, member.requests),
        )

    async def first(
        self,
        attempt: Callable[[Member[T]], Awaitable[R]],
        *,
        skip: tuple[type[TilertStreamError], ...] = _UNREACHED,
        order: Sequence[Member[T]] | None = None,
    ) -> R:
        """What the first node gives that does not fail with an error in ``skip``.

        :param order: whom to ask, one after another; None: ``order()``.
        :raises ~tilert_stream.errors.Busy: no node gave anything, and one was only busy.
        :raises ~tilert_stream.errors.TilertStreamError: an error that is not in ``skip``, or the
            first one if every node failed.
        """
        errors: list[TilertStreamError] = []
        for member in self.order() if order is None else order:
            try:
                result = await attempt(member)
            except (Busy, NotReady, UpstreamError) as error:
                self.note(member, error)
                if not isinstance(error, skip):
                    raise
                errors.append(error)
            else:
                member.shunned_until = 0.0
                return result
        raise self.failure(errors)

    def note(self, member: Member[T], error: TilertStreamError) -> None:
        """Remember what a node's answer says of its health."""
        if isinstance(error, _SICK):
            logger.warning("%s node %s: %s", self.kind, member.name, error)
            self.avoid(member)

    def avoid(self, member: Member[T]) -> None:
        """Ask ``member`` last, for a while."""
        member.shunned_until = self._clock() + self.shun

    def failure(self, errors: Sequence[TilertStreamError]) -> TilertStreamError:
        """What the client is told where every node has failed with one of ``errors``."""
        busy = [error for error in errors if isinstance(error, Busy)]
        if not busy or len(errors) == 1:
            return errors[0]
        waits = [error.retry_after for error in busy if error.retry_after is not None]
        dead = len(errors) - len(busy)
        others = f", and {dead} cannot be used" if dead else ""
        return Busy(
            f"{len(busy)} {self.kind} nodes are busy{others}; try again later",
            retry_after=min(waits, default=1),
        )

    def status(self) -> list[NodeStatus]:
        """Every node, in the order in which it was named."""
        now = self._clock()
        return [NodeStatus(m.name, m.requests, m.shunned_until <= now) for m in self.members]
