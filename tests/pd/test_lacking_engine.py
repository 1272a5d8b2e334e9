"""What an engine cannot do is told before a prompt is computed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.pd.cluster import LONGEST, Cluster, ScriptedModel
from tilert_engine.scripted import Script, ScriptedDecode
from tilert_stream.events import Capability

OTHERS: dict[str, Any] = {
    "logprobs": True,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "repetition_penalty": 2,
    "logit_bias": {"5": 1},
    "response_format": {"type": "json_object"},
}
NAMED = {"response_format": "grammar"}
"""What a node calls a need that is no field."""


class NoMinP(ScriptedDecode):
    capabilities: frozenset[Capability] = frozenset({"seed"})


async def test_min_p_is_a_400_before_prefill_and_the_next_request_is_served() -> None:
    model = ScriptedModel(Script())
    decode = NoMinP(Script(), slots=1, max_seq_len=LONGEST)
    lacking = SimpleNamespace(front=model.front, decode=decode, layout=model.layout)
    prompts: list[int] = []
    prefill = Script(before_chunk=prompts.append)
    async with Cluster(prefill=prefill, decode_models=[lacking]).running() as cluster:
        answer = await cluster.ask(min_p=0.1, max_tokens=5)
        assert (answer.status, answer.error) == (400, "unsupported_parameter")
        assert "min_p" in answer.message
        await cluster.idle()
        assert prompts == []
        for name, value in OTHERS.items():
            answer = await cluster.ask(max_tokens=5, **{name: value})
            assert (answer.status, answer.error) == (400, "unsupported_parameter"), name
            assert NAMED.get(name, name) in answer.message
        await cluster.idle()
        assert prompts == []
        assert (await cluster.look("/v1/models"))["data"][0]["capabilities"] == ["seed"]
        assert (await cluster.ask(min_p=0, max_tokens=5)).text == "abcab"
        assert len(prompts) > 0
