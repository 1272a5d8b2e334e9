"""A router's pipeline, and the nodes it talks to: real sockets, real servers, no engines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc

from tilert_stream.cluster.address import NodeAddress
from tilert_stream.cluster.decode_call import DecodeCall
from tilert_stream.cluster.janitor import Janitor
from tilert_stream.cluster.keeper import Keeper
from tilert_stream.cluster.pool import Pool
from tilert_stream.cluster.prefill_call import PrefillCall
from tilert_stream.cluster.queue import Queue
from tilert_stream.events import Finished, GenerateRequest, Limits, TextDelta
from tilert_stream.http import Server, ServerSettings
from tilert_stream.http.client import HTTPClient, Origin
from tilert_stream.model.byte_tokenizer import EOS, byte_tokenizer
from tilert_stream.nodes.remote import RemoteDecode
from tilert_stream.nodes.remote_prefill import RemotePrefill
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.service import Service
from tilert_stream.stages.decode import Decode
from tilert_stream.stages.detokenize import Detokenize
from tilert_stream.stages.kv_import import ImportKV
from tilert_stream.stages.prefill import Prefill
from tilert_stream.stages.reserve import Reserve
from tilert_stream.stages.stop import StopStrings
from tilert_stream.testing.pd_nodes import ScriptedDecodeNode, ScriptedPrefillNode

LIMIT = 60
"""Seconds after which a test that hangs fails; nothing waits for it otherwise."""

SETTINGS = ServerSettings(port=0, lifespan="off", access_log=False, drain_timeout=LIMIT)
PROMPT = tuple(b"abc")


def make(limits: Limits | int = 5, rid: str = "feed", **fields: Any) -> GenerateRequest:
    limits = Limits(limits, eos_ids=frozenset({EOS})) if isinstance(limits, int) else limits
    return GenerateRequest(rid, PROMPT, limits, **fields)


def letters(index: int) -> int:
    """``a``, ``b``, ``c`` …, by the index in the answer."""
    return 97 + index % 26


class Plain:
    """An encoder that keeps what it is told."""

    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TextDelta) -> Sequence[TextDelta]:
        return (item,)

    def finish(self, _outcome: Finished) -> Sequence[TextDelta]:
        return ()


class Host:
    """One node's server; a dead node is one that was killed."""

    def __init__(self, app: Any) -> None:
        self.app = app
        # The real nodes open ports of their own in their lifespan.
        real = hasattr(app, "lifespan")
        self.server = Server(app, replace(SETTINGS, lifespan="on" if real else "off"))
        self.port = 0
        self.dead = False

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        addresses: list[tuple[str, int | None]] = await tasks.start(self.server.serve)
        self.port = addresses[0][1] or 0

    @property
    def ctrl_port(self) -> int:
        """A real decode node's control port; the scripted one has none."""
        return getattr(self.app, "ctrl_port", 5556)

    def kill(self) -> None:
        """Close every connection and refuse new ones, at once; what it held is gone with it."""
        self.dead = True
        self.server.cut()


class FixedLayout:
    """What prefill's KV caches look like, known from elsewhere."""

    def __init__(self, *told: Mapping[str, object]) -> None:
        self._told = list(told)

    @property
    def common(self) -> Mapping[str, object]:
        return self._told[0]

    async def renew(self) -> None:
        if len(self._told) > 1:
            del self._told[0]


class Router:
    """Prefill, decode, and the pipeline between."""

    def __init__(self, prefills: Sequence[Host], decodes: Sequence[Host], **options: Any) -> None:
        self.client = HTTPClient()
        # What waits for a limit of theirs to run out fails by the test's own limit first.
        self.janitor = Janitor(within=10 * LIMIT)
        self.keeper = Keeper()
        self.hosts = [*prefills, *decodes]
        sign = options.get("sign")
        answer_timeout: float = options.get("answer_timeout", 10 * LIMIT)
        kv_timeout: float = options.get("kv_timeout", 10 * LIMIT)
        self.prefills = Pool[PrefillCall](
            "prefill",
            [
                (
                    f"p{number}",
                    PrefillCall(
                        self.client,
                        Origin.parse(f"http://127.0.0.1:{host.port}", label="the prefill node"),
                        model="prefill-model",
                        api_key=options.get("api_key"),
                        answer_timeout=options.get("prefill_timeout", 10 * LIMIT),
                    ),
                )
                for number, host in enumerate(prefills)
            ],
        )
        self.decodes = Pool[DecodeCall](
            "decode",
            [
                (
                    f"d{number}",
                    DecodeCall(
                        self.client,
                        NodeAddress("127.0.0.1", host.ctrl_port, host.port),
                        sign=sign,
                        answer_timeout=answer_timeout,
                        kv_timeout=kv_timeout,
                    ),
                )
                for number, host in enumerate(decodes)
            ],
        )
        prefill = RemotePrefill(self.prefills)
        decode = RemoteDecode(
            self.decodes,
            self.janitor,
            self.keeper,
            queue=Queue(timeout=options.get("queue_timeout", 0)),
            layouts=options.get("layouts"),
            prefill=prefill,
        )
        self.pipeline = (
            Pipeline()
            .then(Reserve(decode))
            .then(Prefill(prefill))
            .then(ImportKV(decode))
            .then(Decode(decode))
            .then(Detokenize(byte_tokenizer()))
            .then(StopStrings())
        )
        self.service: Service[TextDelta] = Service(self.pipeline)

    async def answer(self, request: GenerateRequest) -> tuple[str, int, Finished]:
        """The text, the number of tokens, and the end."""
        deltas: list[TextDelta] = []
        async with self.service.open(request, Plain) as stream:
            async for some in stream:
                deltas += some
        assert stream.outcome is not None
        text = "".join(delta.text for delta in deltas)
        return text, sum(len(delta.ids) for delta in deltas), stream.outcome

    async def error_of(self, request: GenerateRequest) -> Any:
        """What the client is told, of a request that must fail."""
        _, _, outcome = await self.answer(request)
        assert outcome.reason == "error"
        return outcome.error

    @property
    def held(self) -> dict[str, object]:
        """Everything that anybody holds for a request; empty when nothing is held."""
        held: dict[str, object] = dict(self.service.ledger.counts)
        for pool in (self.prefills, self.decodes):
            held |= {m.name: m.requests for m in pool.members if m.requests}
        for host in (host for host in self.hosts if not host.dead):
            node = host.app
            if isinstance(node, ScriptedDecodeNode) and (node.held or node.decoding):
                held[f"decode {host.port}"] = (node.held, node.decoding)
            if isinstance(node, ScriptedPrefillNode) and node.active:
                held[f"prefill {host.port}"] = node.active
        if self.client.statistics().in_use:
            held["connections"] = self.client.statistics().in_use
        if self.janitor.busy:
            held["janitor"] = self.janitor.busy
        return held

    async def everything_is_back(self) -> None:
        """INV-2: without anybody's help, and by events: no limit is as short as the test's."""
        while self.held:
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def routing(
    prefill: ScriptedPrefillNode | Sequence[Any],
    decode: ScriptedDecodeNode | Sequence[Any],
    *,
    serves_next: bool = True,
    prepare: Callable[[list[Host], list[Host]], None] = lambda _prefills, _decodes: None,
    **options: Any,
) -> AsyncGenerator[Router]:
    """A router and its nodes; in the end everything is back, and the next request is served."""
    prefills = [Host(app) for app in ([prefill] if callable(prefill) else prefill)]
    decodes = [Host(app) for app in ([decode] if callable(decode) else decode)]
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            for host in (*prefills, *decodes):
                await host.start(tasks)
            prepare(prefills, decodes)
            router = Router(prefills, decodes, **options)
            try:
                async with router.janitor, router.keeper, router.service:
                    yield router
                    await router.everything_is_back()
                    if serves_next:
                        _, count, outcome = await router.answer(make(3, "beef"))
                        assert (count, outcome) == (3, Finished("length"))
                        await router.everything_is_back()
            finally:
                router.client.close()
                for host in router.hosts:
                    host.server.cut()
