"""A decode node's HTTP as a stock TileRT router calls it: nothing can be reserved.

One path is ours, ``POST /pd/decline``, for a prefill of ours: a hand-over will not come.

A path that there is not is answered like TileRT's own server does it, so that routers of ours take
the node for one of TileRT's: they pick it by ``/decode_status``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilert_stream.asgi.request_id import id_header
from tilert_stream.asgi.response import JSON, JSONBody
from tilert_stream.errors import NotFound
from tilert_stream.openai.encoding import dumps

from .decode_orders import DeclineBody, read
from .node_app import NodeApp
from .tilert_node import TilertNode

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Scope, Send

    from tilert_stream.events import TokenBatch
    from tilert_stream.service import Service
    from tilert_stream.telemetry.telemetry import Telemetry
    from tilert_transports.control.auth import RequestVerifier

__all__ = ("TilertApp",)


class TilertApp(NodeApp[TilertNode[Any]]):
    """A decode node of the ``tilert-pd`` dialect as an ASGI app; parameters as ``NodeApp``'s."""

    def __init__(
        self,
        node: TilertNode[Any],
        service: Service[TokenBatch],
        *,
        eos_ids: frozenset[int],
        port: AbstractAsyncContextManager[object],
        verifier: RequestVerifier | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        super().__init__(
            node,
            service,
            eos_ids=eos_ids,
            port=port,
            verifier=verifier,
            posts={"/pd/decline": self._decline},
            unknown=_not_found,
            telemetry=telemetry,
        )

    async def _decline(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        asked = read(DeclineBody, body)
        if not self.node.decline(asked.rid, asked.reason):
            raise NotFound(f"the KV cache of request {asked.rid} is here, or on its way")
        await JSONBody(dumps({"declined": asked.rid}))(scope, receive, send)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        answer = JSONBody(b'{"detail":"Not Found"}', status=404, headers=(*JSON, *id_header()))
        await answer(scope, receive, send)
