"""What an engine cannot do is told before a prompt is computed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.pd.cluster import LONGEST, Cluster, ScriptedModel
from tilert_engine.scripted import Script, ScriptedDecode
from tilert_stream.events import Capability


class Plain(ScriptedDecode):
    capabilities: frozenset[Capability] = frozenset()


@pytest.mark.parametrize(
    ("asked", "harmless"),
    [
        ({"min_p": 0.1}, {"min_p": 0}),
        ({"seed": 0}, {"seed": 0, "temperature": 0}),
        ({"logprobs": True}, {"logprobs": False}),
        ({"presence_penalty": 1}, {"presence_penalty": 0}),
        ({"frequency_penalty": 1}, {"frequency_penalty": 0}),
        ({"repetition_penalty": 2}, {"repetition_penalty": 1}),
        ({"logit_bias": {"5": 1}}, {"logit_bias": {}}),
    ],
    ids=lambda given: next(iter(given)),
)
async def test_it_is_a_400_before_prefill_and_the_next_request_is_served(
    asked: dict[str, Any], harmless: dict[str, Any]
) -> None:
    model = ScriptedModel(Script())
    decode = Plain(Script(), slots=1, max_seq_len=LONGEST)
    lacking = SimpleNamespace(front=model.front, decode=decode, layout=model.layout)
    prompts: list[int] = []
    prefill = Script(before_chunk=prompts.append)
    async with Cluster(prefill=prefill, decode_models=[lacking]).running() as cluster:
        answer = await cluster.ask(max_tokens=5, **asked)
        assert (answer.status, answer.error) == (400, "unsupported_parameter")
        assert next(iter(asked)) in answer.message
        await cluster.idle()
        assert prompts == []
        assert (await cluster.look("/v1/models"))["data"][0]["capabilities"] == []
        assert (await cluster.ask(max_tokens=5, **harmless)).text == "abcab"
        assert len(prompts) > 0
