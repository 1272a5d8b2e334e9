"""What a prefill node takes of a request, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from tilert_stream.config import RouterConfig
from tilert_stream.errors import InvalidRequest
from tilert_stream.events import Capability
from tilert_stream.nodes.prefill_orders import read_prefill_order
from tilert_stream.serve.front import byte_front

CARD = byte_front(RouterConfig(model="bytes"), 64).card


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"stream": True}, "stream"),
        ({"max_tokens": 2}, "max_tokens"),
    ],
    ids=["n", "prompts", "stream", "tokens"],
)
def test_pd_15_a_prefill_node_computes_one_prompt_once(
    fields: dict[str, object], param: str
) -> None:
    body = {"prompt": [1], "max_tokens": 1} | fields
    with pytest.raises(InvalidRequest) as caught:
        read_prefill_order(orjson.dumps(body), CARD, "completion")
    assert caught.value.param == param


@pytest.mark.parametrize("wanted", [True, False, None, 1])
def test_logprobs_are_computed_where_a_router_reads_them(wanted: object) -> None:
    body = {"prompt": [1], "max_tokens": 1, "logprobs": 2, "wants_logprobs": wanted}
    able = replace(CARD, capabilities=CARD.capabilities | frozenset[Capability]({"logprobs"}))
    order, _ = read_prefill_order(orjson.dumps(body), able, "completion")
    assert order.sampling.logprobs == (2 if wanted is True else None)
