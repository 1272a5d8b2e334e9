"""A decode node's HTTP in our own dialect: what ``node_app`` has, and promises.

=======================  =====================================================================
``POST /pd/reserve``     a slot and a landing region, before anything is prefilled
``POST /pd/renew``       the reservation's lease, while prefill takes its time
``POST /pd/decline``     from prefill, where it does not reach the control port: nothing comes
=======================  =====================================================================
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tilert_stream.asgi.disconnect import unless_left
from tilert_stream.asgi.endpoint import not_found
from tilert_stream.asgi.response import JSONBody
from tilert_stream.errors import NotFound
from tilert_stream.openai.encoding import dumps
from tilert_transports.control.errors import HandshakeRefused
from tilert_transports.control.layout import describe, differences
from tilert_transports.control.prompt import PromptIdentity

from .decode_node import DecodeNode
from .decode_orders import DeclineGrantBody, RenewBody, ReserveBody, read
from .node_app import NodeApp

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Scope, Send

    from tilert_engine.layouts.abc import Description
    from tilert_stream.events import TokenBatch
    from tilert_stream.service import Service
    from tilert_stream.telemetry.telemetry import Telemetry
    from tilert_transports.control.auth import RequestVerifier
    from tilert_transports.control.reservation import Granted

    from .decode_orders import PromptBody

__all__ = ("DecodeApp", "LayoutRefused")


class DecodeApp(NodeApp[DecodeNode[Any]]):
    """A decode node as an ASGI app; the parameters that are not named here are ``NodeApp``'s.

    :param layout: the node's own KV layout, field by field.
    """

    def __init__(
        self,
        node: DecodeNode[Any],
        service: Service[TokenBatch],
        *,
        layout: Description,
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
            posts={
                "/pd/reserve": self._reserve,
                "/pd/renew": self._renew,
                "/pd/decline": self._decline,
            },
            unknown=not_found,
            telemetry=telemetry,
        )
        self._layout = layout

    async def _reserve(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        asked = read(ReserveBody, body)
        try:
            granted = await self._promise(asked, scope, receive)
        except BaseException:
            if asked.generation is not None:
                self.node.refuse(asked.generation)
            raise
        answer = {
            "rid": granted.request,
            "incarnation": granted.incarnation,
            "generation": granted.generation,
            "region": granted.region.id,
            "ttl": granted.ttl,
            "slots": self.node.admission.statistics().slots,
        }
        try:
            await JSONBody(dumps(answer))(scope, receive, send)
        except BaseException:
            # The router has left without its grant.
            self.node.withdraw(asked.rid)
            raise

    async def _promise(self, asked: ReserveBody, scope: Scope, receive: Receive) -> Granted:
        found = () if asked.layout is None else differences(self._layout, asked.layout)
        if found:
            raise LayoutRefused(describe(found))
        wait = asked.wait_s or 0
        promise = partial(
            self.node.promise,
            asked.rid,
            asked.max_len,
            needs=asked.needs or (),
            wait=wait,
            prompt=None if asked.prompt is None else _identity(asked.prompt),
            attempt=asked.attempt,
            generation=asked.generation,
        )
        return await (unless_left(scope, receive, promise) if wait else promise())

    async def _renew(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        asked = read(RenewBody, body)
        ttl = self.node.renew(asked.rid, asked.generation)
        await JSONBody(dumps({"rid": asked.rid, "ttl": ttl}))(scope, receive, send)

    async def _decline(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        asked = read(DeclineGrantBody, body)
        grant = (asked.rid, asked.incarnation, asked.generation)
        if not self.node.decline(*grant, asked.reason):
            raise NotFound(f"nobody waits for grant {asked.generation} of request {asked.rid}")
        await JSONBody(dumps({"declined": asked.rid}))(scope, receive, send)


def _identity(prompt: PromptBody) -> PromptIdentity:
    return PromptIdentity(prompt.tokens, prompt.last_token, prompt.digest)


class LayoutRefused(HandshakeRefused):
    """Prefill's KV caches do not fit this node's engine."""

    status = 409
    code = "kv_layout_mismatch"
