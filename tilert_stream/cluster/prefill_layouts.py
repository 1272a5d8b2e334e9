"""The KV caches that a router's prefill nodes make: what they say of them in, one layout out.

Prefill nodes of this project describe theirs in ``GET /v1/models``. Where all of a router's nodes
have told, and tell the same, a decode node that cannot take such a cache is known before anything
is computed. Others (vLLM says nothing of it) are found out in the handshake, as the KV cache
leaves. What is known is only ever a reason to refuse after it has been asked for anew: a node may
have been started with another model since.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from anyio import create_task_group

from ..http.client.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .janitor import Janitor
    from .pool import Member, Pool
    from .prefill_call import PrefillCall

__all__ = ("KnownLayout", "PrefillLayouts")

logger = logging.getLogger(__name__)


class KnownLayout(Protocol):
    """The layout that reservations name."""

    @property
    def common(self) -> Mapping[str, object] | None:
        """Field by field; None where it is not known, or there are several."""
        ...

    async def renew(self) -> None:
        """Ask again. Never fails: what cannot be had is not known."""
        ...


class PrefillLayouts:
    """What is known of the nodes of a pool.

    :param janitor: asks them, while nobody waits for it.
    """

    def __init__(self, pool: Pool[PrefillCall], janitor: Janitor) -> None:
        self._pool = pool
        self._janitor = janitor
        self._known: dict[str, Mapping[str, object] | None] = {}
        """By name; None: it says nothing of it."""
        self._asking = set[str]()

    @property
    def common(self) -> Mapping[str, object] | None:
        """See ``KnownLayout``."""
        first, *others = (self._known.get(member.name) for member in self._pool.members)
        return first if all(other == first for other in others) else None

    def ask(self) -> None:
        """Have every node asked that has not told. Sync."""
        for member in self._pool.members:
            self.meet(member)

    def meet(self, member: Member[PrefillCall]) -> None:
        """Have ``member``, which answers, asked if it has not told. Sync."""
        name = member.name
        if name not in self._known and name not in self._asking:
            self._asking.add(name)
            self._janitor.submit(
                f"KV layout of {name}",
                partial(self._ask, member),
                lambda: self._asking.discard(name),
            )

    def doubt(self) -> None:
        """Forget all: two nodes did not fit together. Sync."""
        self._known.clear()
        self.ask()

    async def renew(self) -> None:
        """See ``KnownLayout``."""
        async with create_task_group() as tasks:
            for member in self._pool.members:
                tasks.start_soon(self._try, member)

    async def _try(self, member: Member[PrefillCall]) -> None:
        try:
            await self._ask(member)
        except UpstreamError as error:
            logger.info("KV layout of %s: %s", member.name, error)
            self._known.pop(member.name, None)

    async def _ask(self, member: Member[PrefillCall]) -> None:
        self._known[member.name] = await member.node.layout()
        self._asking.discard(member.name)
