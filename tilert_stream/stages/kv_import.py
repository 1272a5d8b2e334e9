"""``Prefilled`` → ``KVReady``: the KV cache comes into the decode slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_stream.lifecycle import State
from tilert_stream.link import where_of

if TYPE_CHECKING:
    from tilert_stream.abc import DecodeNode
    from tilert_stream.events import Finished, KVReady, Prefilled
    from tilert_stream.scope import RequestScope

__all__ = ("ImportKV",)


class ImportKV:
    """Awaits the event that the KV cache has landed, and its import."""

    def __init__(self, node: DecodeNode) -> None:
        self._node = node
        self.where = where_of(node)
        """The process that does the work, in print."""

    async def call(self, item: Prefilled, scope: RequestScope) -> KVReady | Finished:
        """Import the KV cache.

        :raises ~tilert_stream.errors.EngineFault: its shape is not the slot's.
        """
        scope.lifecycle.move(State.IMPORTING_KV)
        return await self._node.import_kv(item, scope)
