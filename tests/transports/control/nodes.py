"""Two nodes that fit together, for tests to change one thing at a time."""

from __future__ import annotations

from dataclasses import replace

from tilert_transports.control.auth import ClusterKey
from tilert_transports.control.handshake import DecodeHandshake, PrefillHandshake
from tilert_transports.control.hello import Hello
from tilert_transports.control.layout import Description

LAYOUT: Description = {
    "kind": "mla_nsa",
    "version": 10,
    "model": "glm5",
    "dtype": "fp8_ds_mla",
    "block_size": 64,
    "layers": 79,
    "draft_layers": 1,
    "senders": 1,
}
DECODE = Hello("decode-0", "decode", "d-1", LAYOUT, 8192, "shm", b"card of decode-0", bytes(32))
PREFILL = Hello("prefill-0", "prefill", "p-1", LAYOUT, 8192, "shm", b"card of prefill-0", bytes(32))
KEY = ClusterKey("correct horse battery staple")


def with_layout(hello: Hello, **changes: str | int) -> Hello:
    return replace(hello, layout={**hello.layout, **changes})


def shake(decode: DecodeHandshake, prefill: PrefillHandshake) -> None:
    """Let the two exchange all their messages."""
    hello = prefill.receive(decode.open())
    assert hello is not None
    assert prefill.receive(decode.receive(hello)) is None
