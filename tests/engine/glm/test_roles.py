"""``tiny-glm5`` by the roles as they run in production: a process each."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import orjson

from tests.engine.glm.asking import Answer
from tests.engine.glm.make_greedy import QUESTIONS
from tests.free_ports import free_ports
from tests.pd.cluster import read
from tests.pd.processes import NodeProcess
from tilert_engine.models import describe_tiny_glm5
from tilert_stream.http.client import HTTPClient, Origin

MODEL = ("--model", "tiny-glm5", "--no-access-log")
ENGINE = (*MODEL, "--threads", "1", "--max-seq-len", "256")


def test_prefill_decode_and_router(answers: list[Answer]) -> None:
    prefill_port, ctrl, http, port = free_ports(4)
    nodes = (
        NodeProcess("prefill", *ENGINE, "--port", str(prefill_port)),
        NodeProcess("decode", *ENGINE, "--ctrl-port", str(ctrl), "--http-port", str(http)),
        NodeProcess(
            "router",
            *(*MODEL, "--port", str(port), "--prefill", f"http://127.0.0.1:{prefill_port}"),
            *("--decode", f"127.0.0.1:{ctrl}:{http}"),
        ),
    )
    expected = next(answer for answer in answers if answer.cache)
    body = {
        "messages": [{"role": "user", "content": QUESTIONS[0]}],
        "max_tokens": len(expected.ids),
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }

    async def ask() -> str:
        origin = Origin.parse(f"http://127.0.0.1:{port}")
        with anyio.fail_after(60), HTTPClient() as client:
            path = "/v1/chat/completions"
            async with client.request(origin, "POST", path, (), orjson.dumps(body)) as response:
                answer = await read(response)
        assert answer.whole, answer.message
        return answer.text

    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        told = anyio.run(ask)
    assert told == describe_tiny_glm5().tokenizer.decode(expected.ids)
