"""``GenerateRequest`` → ``Reserved``: from here on the request is accepted.

Everything that can refuse a request cheaply (no slot, no room in the window) does so here, before
a prompt is computed for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_stream.lifecycle import State
from tilert_stream.link import where_of

if TYPE_CHECKING:
    from tilert_stream.abc import DecodeNode
    from tilert_stream.events import Finished, GenerateRequest, Reserved
    from tilert_stream.scope import RequestScope

__all__ = ("Reserve",)


class Reserve:
    """Claims a decode slot for the request."""

    def __init__(self, node: DecodeNode) -> None:
        self._node = node
        self.where = where_of(node)
        """The process that does the work, in print."""
        self._start_early = getattr(node, "start_early", None)

    def start_early(self, item: GenerateRequest, scope: RequestScope) -> None:
        """Let the node begin, if it can before it is awaited. Sync."""
        if self._start_early is not None:
            self._start_early(item, scope)

    async def call(self, item: GenerateRequest, scope: RequestScope) -> Reserved | Finished:
        """Wait in line for a slot.

        :raises ~tilert_stream.errors.Busy: none came free in time, or the line is full.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the request can never fit.
        """
        reserved = await self._node.reserve(item, scope)
        scope.lifecycle.move(State.RESERVED)
        return reserved
