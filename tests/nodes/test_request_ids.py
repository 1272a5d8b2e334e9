"""Ids that come from other processes stand in log lines: they are printable, or refused."""

from __future__ import annotations

import orjson
import pytest

from tilert_stream.config import RouterConfig
from tilert_stream.errors import InvalidRequest
from tilert_stream.nodes.decode_orders import ReserveBody, read
from tilert_stream.nodes.hand_over.destination import destination_of
from tilert_stream.nodes.prefill_orders import read_prefill_order
from tilert_stream.serve.front import byte_front

BAD = ["b\nERROR forged", "", "\x00", "a" * 129]
CARD = byte_front(RouterConfig(model="bytes"), 64).card


@pytest.mark.parametrize("rid", BAD)
def test_a_reservation_names_a_printable_id(rid: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(ReserveBody, orjson.dumps({"rid": rid, "max_len": 4}))
    assert caught.value.param == "rid"


@pytest.mark.parametrize("rid", BAD)
def test_a_prefill_order_has_a_printable_id(rid: str) -> None:
    body = {"prompt": [1, 2], "max_tokens": 1, "request_id": rid}
    with pytest.raises(InvalidRequest) as caught:
        read_prefill_order(orjson.dumps(body), CARD, "completion")
    assert caught.value.param == "request_id"


@pytest.mark.parametrize("rid", BAD[:3])
def test_a_grant_has_a_printable_id(rid: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        destination_of(
            {
                "tilert_host": "127.0.0.1",
                "tilert_request": rid,
                "tilert_incarnation": "f",
                "tilert_generation": 1,
            }
        )
    assert caught.value.param == "kv_transfer_params.tilert_request"
