"""A router of ours before a vLLM that has our connector; decode nodes are the test's own.

The vLLM is a stand-in (``GlmVllm``): it prefills ``tiny-glm5`` into paged caches. The connector in
it, its sender's thread and its transport are the real ones.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import orjson

from tests.nodes.glm_vllm import GlmVllm
from tests.pd.cluster import LIMIT, Node
from tilert_stream.config import RouterConfig
from tilert_stream.http.client import HTTPClient, Origin
from tilert_stream.serve.router import build_router
from tilert_stream.testing.pd_nodes import Answer, ScriptedPrefillNode


@dataclass
class VllmNode:
    """vLLM's HTTP around its engine, which works in a thread."""

    vllm: GlmVllm
    steps: dict[str, Any] = field(default_factory=dict[str, Any])
    """How the next prompts are computed; see ``GlmVllm.prefill``."""

    def __post_init__(self) -> None:
        self.app = ScriptedPrefillNode(
            first_token=lambda prompt: self.vllm.firsts[tuple(prompt)],
            before_answer=self._compute,
        )

    async def _compute(self, fields: dict[str, Any]) -> Answer | None:
        def compute() -> None:
            # What vLLM makes of the request's own id, for a completion.
            request_id = f"cmpl-{fields['request_id']}-0-0123abcd"
            params: dict[str, Any] = fields.get("kv_transfer_params") or {}
            self.vllm.prefill(request_id, fields["prompt"], params, **self.steps)

        await anyio.to_thread.run_sync(compute)
        return None


@dataclass
class VllmCluster:
    """What a client sees."""

    node: VllmNode
    origin: Origin
    client: HTTPClient

    async def ask(self, prompt: Sequence[int], count: int) -> tuple[list[int], dict[str, Any]]:
        """See ``ask_ids``."""
        return await ask_ids(self.client, self.origin, prompt, count)


async def ask_ids(
    client: HTTPClient, origin: Origin, prompt: Sequence[int], count: int
) -> tuple[list[int], dict[str, Any]]:
    """The ids of a greedy answer; and the error object, empty if there is none."""
    body = {
        "prompt": list(prompt),
        "max_tokens": count,
        "ignore_eos": True,
        "temperature": 0,
        "return_token_ids": True,
    }
    async with client.request(
        origin, "POST", "/v1/completions", (), orjson.dumps(body)
    ) as response:
        answer: Any = orjson.loads(await response.read(1 << 20, within=LIMIT))
    if response.status != 200:
        return [], answer["error"]
    return answer["choices"][0]["token_ids"], {}


@asynccontextmanager
async def vllm_cluster(
    vllm: GlmVllm, decode: Any, ctrl_port: Any, **options: Any
) -> AsyncGenerator[VllmCluster]:
    """Everything, on servers.

    :param decode: a decode node's HTTP, an ASGI app.
    :param ctrl_port: has a ``port``, once ``decode`` runs.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(LIMIT))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        node = VllmNode(vllm)
        prefill, http = Node(node.app), Node(decode)
        for each in (prefill, http):
            await each.start(tasks)
            stack.callback(each.server.drain)
        config = RouterConfig(
            model="tiny-glm5",
            prefill_nodes=(f"http://127.0.0.1:{prefill.port}",),
            decode_nodes=(f"127.0.0.1:{ctrl_port.port}:{http.port}",),
            **options,
        )
        routing = Node(build_router(config))
        await routing.start(tasks)
        stack.callback(routing.server.drain)
        client = stack.enter_context(HTTPClient())
        yield VllmCluster(node, routing.origin, client)
