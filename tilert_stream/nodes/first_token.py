"""``Reserved`` → ``Prefilled`` on a decode node: the first token comes with the router's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tilert_stream.events import Finished, Prefilled, PromptUsage, Reserved, TokenBatch

if TYPE_CHECKING:
    from tilert_stream.scope import RequestScope

    from .decode_orders import DecodeOrder

__all__ = ("FirstToken",)


class FirstToken:
    """``Reserved`` → ``Prefilled``: what the router already knows of the prompt.

    A first token that ends the request ends it here, before its KV cache is waited for.
    """

    stage_name = "first_token"

    async def call(self, item: Reserved, scope: RequestScope) -> Prefilled | Finished:
        """Take the first token out of the order."""
        order = cast("DecodeOrder", scope.request)
        first = TokenBatch((order.first_token,))
        _, finished = order.limits.cut(first.ids, 0)
        if finished is None:
            return Prefilled(item, first, None, PromptUsage(0))
        scope.mailbox.put(TokenBatch(first.ids, ends_with_stop=finished.reason == "stop"))
        return finished
