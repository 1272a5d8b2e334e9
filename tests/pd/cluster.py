"""A whole cluster in one event loop: a router, a prefill node and decode nodes, each on its server.

Every part is the one that runs in production, sockets included; only engines are by script.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.lowlevel
import orjson

from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
from tilert_stream.config import DecodeConfig, PrefillConfig, RouterConfig
from tilert_stream.http import Server, ServerSettings
from tilert_stream.http.client import HTTPClient, Origin
from tilert_stream.serve.decode import build_decode
from tilert_stream.serve.front import byte_front
from tilert_stream.serve.prefill import build_prefill
from tilert_stream.serve.router import build_router
from tilert_stream.testing import Gate
from tilert_transports.registry import load

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from starlette.types import ASGIApp

    from tilert_engine.layouts.abc import KVLayout
    from tilert_stream.asgi import App
    from tilert_stream.http.client import Response
    from tilert_stream.nodes.decode_app import DecodeApp
    from tilert_stream.nodes.landing_port import LandingPort
    from tilert_stream.nodes.prefill_app import PrefillApp

    Headers = Sequence[tuple[str, str]]

for each in ("auto", "memory"):
    load(each)  # before any event loop runs: importing reads files

LIMIT = 60
"""Seconds after which a test that hangs fails; nothing waits for it otherwise."""
SETTINGS = ServerSettings(port=0, access_log=False, drain_timeout=LIMIT)
LONGEST = 256


class ScriptedModel:
    """What ``--engine scripted`` loads, with a script of the test's own."""

    def __init__(
        self,
        script: Script,
        *,
        slots: int = 2,
        layout: KVLayout | None = None,
        longest: int = LONGEST,
    ) -> None:
        self.front = byte_front(RouterConfig(model="bytes"), longest)
        self.prefill = ScriptedPrefill(script, max_seq_len=longest)
        self.decode = ScriptedDecode(script, slots=slots, max_seq_len=longest)
        self.layout = layout or ScriptedLayout(longest)


class Node:
    """One app on its server."""

    def __init__(self, app: ASGIApp, settings: ServerSettings = SETTINGS) -> None:
        self.app = app
        self.server = Server(app, settings)
        self.port = 0

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        addresses: list[tuple[str, int | None]] = await tasks.start(self.server.serve)
        self.port = addresses[0][1] or 0

    @property
    def origin(self) -> Origin:
        return Origin.parse(f"http://127.0.0.1:{self.port}")


class Answer(NamedTuple):
    """What a client has read."""

    status: int
    text: str
    finish_reason: str | None
    completion_tokens: int | None
    error: str | None
    """Its code."""
    complete: bool
    message: str = ""

    @property
    def whole(self) -> bool:
        """Whether it is an answer, and all of it."""
        return self.complete and self.error is None


@dataclass
class Cluster:
    """How it is made; ``running`` starts it."""

    prefill: Script = field(default_factory=Script)
    decode: list[Script] = field(default_factory=lambda: [Script()])
    transport: str = "tcp"
    slots: int = 2
    prefill_options: dict[str, Any] = field(default_factory=dict[str, Any])
    decode_options: dict[str, Any] = field(default_factory=dict[str, Any])
    router_options: dict[str, Any] = field(default_factory=dict[str, Any])
    prefill_layout: KVLayout | None = None
    prefill_model: Any = None
    decode_models: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        model = self.prefill_model or ScriptedModel(self.prefill, layout=self.prefill_layout)
        options: dict[str, Any] = {"transport": self.transport, **self.prefill_options}
        config = PrefillConfig(port=0, **options)
        self.prefill_app: PrefillApp = build_prefill(config, model)
        self.models = self.decode_models or [
            ScriptedModel(script, slots=self.slots) for script in self.decode
        ]
        self.decode_apps: list[DecodeApp] = []
        self.ports: list[LandingPort] = []
        for each in self.models:
            app, port = build_decode(
                DecodeConfig(
                    http_port=0,
                    ctrl_port=0,
                    slots=each.decode.slots,
                    transport=self.transport,
                    **self.decode_options,
                ),
                each,
            )
            self.decode_apps.append(app)
            self.ports.append(port)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Cluster]:
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
                self._tasks, self._stack = tasks, stack
                prefill = Node(self.prefill_app)
                self.decode_nodes = [Node(app) for app in self.decode_apps]
                for node in (prefill, *self.decode_nodes):
                    await node.start(tasks)
                    stack.callback(node.server.drain)
                self.routers: list[App] = []
                self.prefill_port = prefill.port
                router = await self.add_router()
                self.router = self.routers[0]
                self.origin = router.origin
                with HTTPClient() as self.client:
                    try:
                        yield self
                    except BaseException:
                        # Nodes end when their engines' threads do.
                        Gate.open_all()
                        raise

    async def add_router(self, settings: ServerSettings = SETTINGS, **options: Any) -> Node:
        """One router more, of the same nodes.

        A time limit that a test lets run out is best a second router's: a slow machine's other
        requests then have as long as they take.
        """
        app = build_router(
            RouterConfig(
                model="bytes",
                prefill_nodes=(f"http://127.0.0.1:{self.prefill_port}",),
                decode_nodes=tuple(
                    f"127.0.0.1:{port.port}:{node.port}"
                    for port, node in zip(self.ports, self.decode_nodes, strict=True)
                ),
                **{**self.router_options, **options},
            )
        )
        self.routers.append(app)
        router = Node(app, settings)
        await router.start(self._tasks)
        self._stack.callback(router.server.drain)
        return router

    def request(
        self, origin: Origin | None = None, headers: Headers = (), **fields: Any
    ) -> AbstractAsyncContextManager[Response]:
        """A chat, streamed, as an open response.

        :param origin: of another router than the first.
        """
        body = {"messages": [{"role": "user", "content": "abc"}], "stream": True, **fields}
        return self.client.request(
            origin or self.origin, "POST", "/v1/chat/completions", headers, orjson.dumps(body)
        )

    async def ask(
        self, origin: Origin | None = None, headers: Headers = (), **fields: Any
    ) -> Answer:
        """The whole answer to a chat, streamed or not."""
        async with self.request(origin, headers, **fields) as response:
            return await read(response)

    async def look(self, path: str, origin: Origin | None = None) -> Any:
        """What a router says at ``path``."""
        async with self.client.request(origin or self.origin, "GET", path) as response:
            return orjson.loads(await response.read(65536, within=LIMIT))

    async def waiting(self, count: int, origin: Origin | None = None) -> None:
        """Wait until so many requests stand in a router's line."""
        while (await self.look("/pool_status", origin))["waiting"] != count:
            await anyio.lowlevel.checkpoint()

    @property
    def held(self) -> dict[str, Any]:
        """All that is held anywhere; empty when nothing is (INV-2)."""
        found: dict[str, Any] = {
            "routers": [
                app.service.ledger.counts for app in self.routers if app.service.ledger.counts
            ],
            "prefill": self.prefill_app.service.ledger.counts,
        }
        for number, (app, model) in enumerate(zip(self.decode_apps, self.models, strict=True)):
            found[f"decode {number}"] = app.service.ledger.counts
            found[f"requests {number}"] = app.node.requests
            found[f"slots {number}"] = app.node.admission.statistics().busy
            found[f"engine {number}"] = model.decode.busy
        return {name: what for name, what in found.items() if what}

    async def idle(self) -> None:
        """Wait until nothing is held; it comes by events, so each look only yields to them."""
        while self.held:
            await anyio.lowlevel.checkpoint()


async def read(response: Response, seen: Callable[[bytes], object] = bytes) -> Answer:
    """Read to the end, or to the cut.

    :param seen: called with the body so far, whenever it has grown.
    """
    body, complete = b"", True
    try:
        async for piece in response.chunks():
            body += piece
            seen(body)
    except Exception:  # noqa: BLE001 - a cut is an answer, too
        complete = False
    if not (response.header(b"content-type") or "").startswith("text/event-stream"):
        return _plain(response.status, orjson.loads(body), complete=complete)
    events = [event[6:] for event in body.decode().split("\n\n") if event]
    done = bool(events) and events[-1] == "[DONE]"
    chunks = [orjson.loads(event) for event in events if event != "[DONE]"]
    error: dict[str, Any] = chunks[-1].get("error", {}) if chunks else {}
    choices = [chunk["choices"][0] for chunk in chunks if chunk.get("choices")]
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return Answer(
        response.status,
        "".join(choice["delta"].get("content", "") for choice in choices),
        choices[-1]["finish_reason"] if choices else None,
        usage[-1]["completion_tokens"] if usage else None,
        error.get("code"),
        complete and done,
        error.get("message", ""),
    )


def _plain(status: int, body: Any, *, complete: bool) -> Answer:
    if "error" in body:
        error = body["error"]
        return Answer(status, "", None, None, error["code"], complete, error["message"])
    (choice,) = body["choices"]
    return Answer(
        status,
        choice["message"]["content"],
        choice["finish_reason"],
        body["usage"]["completion_tokens"],
        None,
        complete,
    )
