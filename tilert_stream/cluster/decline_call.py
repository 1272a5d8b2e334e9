"""Prefill's one call of a decode node's HTTP, ``POST /pd/decline``: a reason in, nothing out.

For what the node is not told on its control port: prefill does not reach it, or its dialect has no
word for it. A stock TileRT node does not know the path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from .signed_posts import SignedPosts

if TYPE_CHECKING:
    from ..http.client import HTTPClient
    from .address import NodeAddress
    from .signing import Sign

__all__ = ("DeclineCall",)

REASON_MAX: Final = 2000


class DeclineCall:
    """Calls one decode node.

    :param sign: signs calls; None where the cluster has no key.
    :param answer_timeout: seconds for a call.
    """

    def __init__(
        self,
        client: HTTPClient,
        address: NodeAddress,
        *,
        sign: Sign | None = None,
        answer_timeout: float = 5.0,
    ) -> None:
        self._posts = SignedPosts(
            client, address, label="the decode node", sign=sign, answer_timeout=answer_timeout
        )

    async def decline_grant(
        self, request: str, incarnation: str, generation: int, reason: str
    ) -> None:
        """Nothing will come for a grant. That nobody waits for it is fine.

        :raises ~tilert_stream.http.client.UpstreamError: the node did not answer.
        """
        await self._decline(
            {"rid": request, "incarnation": incarnation, "generation": generation}, reason
        )

    async def decline_request(self, request: str, reason: str) -> None:
        """The same in a dialect without grants.

        :raises ~tilert_stream.http.client.UpstreamError: the node did not answer.
        """
        await self._decline({"rid": request}, reason)

    async def _decline(self, what: dict[str, object], reason: str) -> None:
        told = {**what, "reason": reason[:REASON_MAX]}
        await self._posts.post("/pd/decline", orjson.dumps(told))
