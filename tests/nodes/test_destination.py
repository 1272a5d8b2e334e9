from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilert_stream.errors import ConfigError, InvalidRequest
from tilert_stream.nodes.hand_over.destination import Destination, Grant, destination_of, params_for
from tilert_stream.nodes.vllm.options import VllmOptions

GRANTED = Destination("2001:db8::1", 7000, Grant("a1b2", "f00d", 12))


@pytest.mark.parametrize(
    "destination", [GRANTED, Destination("node", 5556), replace(GRANTED, http_port=7001)]
)
def test_params_are_read_as_they_were_written(destination: Destination) -> None:
    assert destination_of(params_for(destination)) == destination


def test_the_params_of_tilerts_router_are_ours_too() -> None:
    assert destination_of({"tilert_host": "node"}) == Destination("node", 5556)
    assert destination_of({"tilert_host": "node"}, default_port=9) == Destination("node", 9)
    assert destination_of({"tilert_ctrl_port": 8}, default_host="h") == Destination("h", 8)


@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": True}])
def test_the_params_of_others_are_not(params: dict[str, object] | None) -> None:
    assert destination_of(params, default_host="node") is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tilert_host": 7}, r"tilert_host is 7; a host name"),
        ({"tilert_host": ""}, r"tilert_host is ''"),
        ({"tilert_host": None}, r"tilert_host is None"),
        ({"tilert_ctrl_port": 0}, r"tilert_ctrl_port is 0; an integer from 1 to 65535"),
        ({"tilert_ctrl_port": 65536}, r"tilert_ctrl_port is 65536"),
        ({"tilert_ctrl_port": True}, r"tilert_ctrl_port is True"),
        ({"tilert_http_port": 0}, r"tilert_http_port is 0; an integer from 1 to 65535"),
        ({"tilert_http_port": None}, r"tilert_http_port is None"),
        ({"tilert_request": ""}, r"tilert_request is ''"),
        ({"tilert_incarnation": None}, r"tilert_incarnation is None"),
        ({"tilert_generation": "x"}, r"tilert_generation is 'x'; an integer"),
        ({"tilert_generation": 0}, r"tilert_generation is 0"),
    ],
)
def test_kv_01_a_value_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        destination_of({**params_for(GRANTED), **change})
    assert caught.value.param == f"kv_transfer_params.{next(iter(change))}"


@pytest.mark.parametrize("key", ["tilert_request", "tilert_incarnation", "tilert_generation"])
def test_kv_01_a_grant_that_is_not_whole_is_refused(key: str) -> None:
    params = params_for(GRANTED)
    del params[key]
    with pytest.raises(InvalidRequest, match=rf"{key} is None"):
        destination_of(params)


def test_options_go_by_tilerts_names_and_by_ours() -> None:
    tilert = VllmOptions.of(
        {
            "tilert_host": "h",
            "tilert_ctrl_port": 1,
            "tilert_model": "m",
            "tilert_max_seq_len": 2,
            "tilert_transport": "nixl",
            "tilert_sync_send": True,
        }
    )
    ours = VllmOptions.of(
        {
            "host": "h",
            "ctrl_port": 1,
            "model": "m",
            "max_seq_len": 2,
            "transport": "nixl",
            "sync_send": True,
        }
    )
    assert tilert == ours
    assert ours == VllmOptions(
        host="h", ctrl_port=1, model="m", max_seq_len=2, transport="nixl", sync_send=True
    )


def test_options_have_defaults() -> None:
    assert VllmOptions.of({}) == VllmOptions()
    given = VllmOptions.of({"send_timeout": 3, "staging_bytes": 10, "cluster_key_file": "k"})
    assert given == VllmOptions(send_timeout=3.0, staging_bytes=10, cluster_key_file=Path("k"))


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"tilert_hots": "h"}, r"'tilert_hots'; known are host, .*tilert_host"),
        ({"ctrl_port": 1, "tilert_ctrl_port": 2}, r"sets ctrl_port twice: 1 and 2"),
        ({"ctrl_port": 65536}, r"ctrl_port is 65536; an integer from 1 to 65535"),
        ({"max_seq_len": True}, r"max_seq_len is True; an integer of 1 or more"),
        ({"max_seq_len": 0}, r"max_seq_len is 0"),
        ({"sync_send": "yes"}, r"sync_send is 'yes'; true or false"),
        ({"send_timeout": 0}, r"send_timeout is 0"),
        ({"send_timeout": "1"}, r"send_timeout is '1'"),
        ({"model": ""}, r"model is ''; a text"),
    ],
)
def test_options_that_cannot_be_are_refused(extra: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        VllmOptions.of(extra)
