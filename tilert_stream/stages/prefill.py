"""``Reserved`` → ``Prefilled``: the prompt is computed, and the first token leaves.

The first token goes into the mailbox before the KV cache is imported, so that its cost is never
part of the time to first token. A first token that ends the request ends it here: the decode side
is never asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from tilert_stream.lifecycle import State
from tilert_stream.link import where_of

if TYPE_CHECKING:
    from tilert_stream.abc import PrefillNode
    from tilert_stream.events import Finished, Prefilled, Reserved
    from tilert_stream.scope import RequestScope

__all__ = ("Prefill",)


class Prefill:
    """Calls the prefill node, and hands over its first token."""

    def __init__(self, node: PrefillNode) -> None:
        self._node = node
        self.where = where_of(node)
        """The process that does the work, in print."""

    async def call(self, item: Reserved, scope: RequestScope) -> Prefilled | Finished:
        """Compute the prompt; ``Finished`` if the first token is also the last.

        A checkpoint behind the node's own work, but where the first token has been taken already.
        """
        scope.lifecycle.move(State.PREFILLING)
        prefilled = await self._node.prefill(item, scope)
        scope.usage = prefilled.usage
        _, finished = scope.request.limits.cut(prefilled.first.ids, 0)
        if finished is None:
            scope.mailbox.put(prefilled.first)
            if not scope.mailbox.awaited:
                # Whoever writes it goes first: the import costs the second token what it saves
                # here. A stream that is forwarded has written it already, and waits for more.
                await checkpoint()
            return prefilled
        stopped = finished.reason == "stop"
        scope.mailbox.put(replace(prefilled.first, ends_with_stop=stopped))
        return finished
