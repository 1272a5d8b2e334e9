"""A decode node's HTTP as a stock TileRT router calls it: nothing can be reserved.

A path that there is not is answered like TileRT's own server does it, so that routers of ours take
the node for one of TileRT's: they pick it by ``/decode_status``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilert_stream.asgi.request_id import id_header
from tilert_stream.asgi.response import JSON, JSONBody

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
            posts={},
            unknown=_not_found,
            telemetry=telemetry,
        )


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        answer = JSONBody(b'{"detail":"Not Found"}', status=404, headers=(*JSON, *id_header()))
        await answer(scope, receive, send)
