"""A router: the pipeline of one process, its engines elsewhere; and what it says of its nodes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.routing import Route

from tilert_stream.asgi.endpoint import Endpoint
from tilert_stream.asgi.response import JSONBody
from tilert_stream.cluster.decode_call import DecodeCall
from tilert_stream.cluster.janitor import Janitor
from tilert_stream.cluster.keeper import Keeper
from tilert_stream.cluster.pool import Pool
from tilert_stream.cluster.prefill_call import PrefillCall
from tilert_stream.cluster.prefill_layouts import PrefillLayouts
from tilert_stream.cluster.queue import Queue
from tilert_stream.http.client import HTTPClient
from tilert_stream.openai.encoding import dumps
from tilert_stream.pipeline import Pipeline
from tilert_stream.service import Service
from tilert_stream.stages.decode import Decode
from tilert_stream.stages.detokenize import Detokenize
from tilert_stream.stages.kv_import import ImportKV
from tilert_stream.stages.parse import ParseOutput
from tilert_stream.stages.prefill import Prefill
from tilert_stream.stages.reserve import Reserve
from tilert_stream.stages.stop import StopStrings

from .remote import RemoteDecode
from .remote_prefill import RemotePrefill

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.types import Receive, Scope, Send

    from tilert_stream.cluster.address import NodeAddress
    from tilert_stream.cluster.signing import Sign
    from tilert_stream.events import TextDelta
    from tilert_stream.http.client import Origin
    from tilert_stream.model.tokenizer import TextTokenizer
    from tilert_stream.parsers.abc import OutputParser
    from tilert_stream.time_limits import TimeLimits
    from tilert_stream.trace import Trace

__all__ = ("Nodes", "pool_status_route", "remote_service")


@dataclass(frozen=True, slots=True)
class Nodes:
    """Who does a router's work."""

    prefill: Pool[PrefillCall]
    decode: Pool[DecodeCall]
    queue: Queue
    """Who waits for a slot on any of them."""
    client: HTTPClient
    """What they are all called with."""

    @classmethod
    def of(
        cls,
        prefill: Sequence[Origin],
        decode: Sequence[NodeAddress],
        *,
        prefill_model: str,
        prefill_api_key: str | None = None,
        sign: Sign | None = None,
        prefill_timeout: float = 300.0,
        kv_timeout: float = 120.0,
        queue_timeout: float = 30.0,
        max_queue: int = 256,
    ) -> Nodes:
        """Nodes by where they are.

        :param prefill_model: the name that prefill nodes know the model by.
        :param sign: signs requests to decode nodes; see ``DecodeCall``.
        :param queue_timeout: seconds a request waits for a decode slot; 0 refuses at once.
        :param max_queue: how many requests may wait.
        :raises ~tilert_stream.errors.ConfigError: there is none of a kind.
        """
        client = HTTPClient(head_timeout=prefill_timeout)
        prefills = [
            PrefillCall(
                client,
                origin,
                model=prefill_model,
                api_key=prefill_api_key,
                answer_timeout=prefill_timeout,
            )
            for origin in prefill
        ]
        decodes = [
            DecodeCall(client, address, sign=sign, kv_timeout=kv_timeout) for address in decode
        ]
        return cls(
            Pool("prefill", [(str(call.origin), call) for call in prefills]),
            Pool("decode", [(str(call.address), call) for call in decodes]),
            Queue(timeout=queue_timeout, max_waiting=max_queue),
            client,
        )


def remote_service(
    nodes: Nodes,
    tokenizer: TextTokenizer,
    *,
    trace: Trace | None = None,
    coalesce: float = 0,
    time_limits: TimeLimits | None = None,
    parser: OutputParser | None = None,
) -> Service[TextDelta]:
    """The service of a router: what ``local_service`` is for one process.

    :param parser: reads reasoning and tool calls out of answers; None: they are text.
    :param coalesce: seconds to wait for more tokens after each wake.
    :param time_limits: how long each part of a request may take.
    """
    janitor, keeper = Janitor(), Keeper()
    layouts = PrefillLayouts(nodes.prefill, janitor)
    prefill = RemotePrefill(nodes.prefill, layouts)
    decode = RemoteDecode(
        nodes.decode, janitor, keeper, queue=nodes.queue, layouts=layouts, prefill=prefill
    )

    @asynccontextmanager
    async def outgoing() -> AsyncGenerator[None]:
        with nodes.client:
            async with janitor, keeper:
                layouts.ask()
                yield

    pipeline = (
        Pipeline()
        .then(Reserve(decode))
        .then(Prefill(prefill))
        .then(ImportKV(decode))
        .then(Decode(decode))
        .then(Detokenize(tokenizer if parser is None else tokenizer.showing(parser.markers)))
        .then(StopStrings())
    )
    if parser is not None:
        pipeline = pipeline.then(ParseOutput(parser))
    return Service(
        pipeline, resources=(outgoing,), trace=trace, coalesce=coalesce, time_limits=time_limits
    )


def pool_status_route(nodes: Nodes) -> Route:
    """``GET /pool_status``: every node, what this router has there, if it answers; and the line."""

    async def status(scope: Scope, receive: Receive, send: Send) -> None:
        answer: dict[str, object] = {
            pool.kind: [
                {"name": node.name, "requests": node.requests, "answers": node.answers}
                for node in pool.status()
            ]
            for pool in (nodes.prefill, nodes.decode)
        }
        answer["waiting"] = nodes.queue.waiting
        await JSONBody(dumps(answer))(scope, receive, send)

    return Route("/pool_status", Endpoint(GET=status))
