"""``KVReady`` → ``TokenBatch`` …: tokens flow into the mailbox until ``Finished`` is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_stream.lifecycle import State
from tilert_stream.link import where_of

if TYPE_CHECKING:
    from tilert_stream.abc import DecodeNode
    from tilert_stream.events import KVReady, TokenBatch
    from tilert_stream.scope import RequestScope

__all__ = ("Decode",)


class Decode:
    """The source of the stream."""

    def __init__(self, node: DecodeNode) -> None:
        self._node = node
        self.where = where_of(node)
        """The process that does the work, in print."""

    async def produce(self, item: KVReady, scope: RequestScope) -> TokenBatch | None:
        """Let the decode node fill ``scope.mailbox``."""
        scope.lifecycle.move(State.DECODING)
        await self._node.decode(item, scope)
        return None
