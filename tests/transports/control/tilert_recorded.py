"""Messages of TileRT's parts as they travel, length and all."""

from __future__ import annotations

import re

from tilert_transports.control.tilert_pd import TilertHello, TilertRequest

NIXL_HELLO_BYTES = (
    b"\x00\x00\x00\xe5"
    b'{"magic": "tilert-pd", "layout_version": 10, "transport": "nixl", "max_seq_len": 8192,'
    b' "busy": false, "nixl_meta": "bWV0YWRhdGE=", "nixl_dev": 3,'
    b' "kv_base": 140737353089024, "pe_base": 140737694859264, "ki_base": 140737777713152}'
)
NIXL_HELLO = TilertHello(
    layout_version=10,
    transport="nixl",
    max_seq_len=8192,
    busy=False,
    card={"nixl_meta": "bWV0YWRhdGE=", "nixl_dev": 3},
    bases={
        "kv_base": 140737353089024,
        "pe_base": 140737694859264,
        "ki_base": 140737777713152,
    },
)
MOONCAKE_HELLO_BYTES = (
    b"\x00\x00\x00\xc2"
    b'{"magic": "tilert-pd", "layout_version": 1010, "transport": "mooncake",'
    b' "max_seq_len": 8192, "busy": true, "session_id": "10.0.0.7:15813",'
    b' "kv_base": 140737353089024, "pe_base": 1, "ki_base": 2}'
)
MOONCAKE_HELLO = TilertHello(
    layout_version=1010,
    transport="mooncake",
    max_seq_len=8192,
    busy=True,
    card={"session_id": "10.0.0.7:15813"},
    bases={"kv_base": 140737353089024, "pe_base": 1, "ki_base": 2},
)
REQUEST_BYTES = (
    b"\x00\x00\x00\x95"
    b'{"rid": "5f0c", "rank": 0, "seq_len": 900, "last_prompt_token": 42,'
    b' "sampling": {"temperature": 0.6, "top_p": 0.95, "top_k": null, "stop": "\\u00e9"}}'
)
REQUEST = TilertRequest(
    "5f0c", 0, 900, 42, {"temperature": 0.6, "top_p": 0.95, "top_k": None, "stop": "é"}
)
BARE_REQUEST_BYTES = (
    b"\x00\x00\x00\x55"
    b'{"rid": "5f0c", "rank": 0, "seq_len": 900, "last_prompt_token": 42, "sampling": null}'
)
DONE_BYTES = b'\x00\x00\x00\x28{"done": true, "rid": "5f0c", "rank": 0}'
TOO_LONG_BYTES = b'\x00\x00\x00\x28{"error": "seq_len exceeds max_seq_len"}'
BUSY_BYTES = b'\x00\x00\x00\x25{"error": "busy", "busy_rid": "77aa"}'


def request_of(**changes: str) -> bytes:
    """The recorded request with fields changed, as JSON text."""
    body = BARE_REQUEST_BYTES[4:].decode()
    for name, value in changes.items():
        body, count = re.subn(rf'("{name}": )[^,}}]+', rf"\g<1>{value}", body)
        assert count == 1
    return len(body).to_bytes(4, "big") + body.encode()
