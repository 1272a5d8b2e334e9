"""The app with every option switched on: none of them hides that a client has left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.asking import ByteApp, exchange
from tilert_engine.scripted import Script
from tilert_stream.telemetry.request_log import RequestLog
from tilert_stream.telemetry.telemetry import Telemetry
from tilert_stream.testing import Gate

HEADERS = [
    (b"authorization", b"Bearer sk-one"),
    (b"origin", b"https://chat.example"),
    (b"x-request-id", b"mine"),
]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("place", ["before_chunk", "before_import", "before_chain"])
async def test_dis_07_the_engine_is_free_when_the_client_has_left(place: str, stream: bool) -> None:
    lines: list[bytes] = []
    with Gate() as gate:
        hooks: dict[str, Any] = {place: gate.pass_through}
        app = ByteApp(
            Script(**hooks),
            api_keys=("sk-one",),
            cors_origins=("https://chat.example",),
            heartbeat=60,
            telemetry=Telemetry("byte", log=RequestLog(lines.append), vllm=True),
        )
        asked = exchange(app, {"max_tokens": 2000}, stream=stream)
        asked.headers = HEADERS
        async with app.lifespan():
            async with asked.running(gate):
                await gate.arrival()
                asked.leave()
            assert app.service.ledger.counts == {}, "the engine still stands"
            gate.open()
            following = exchange(app, {"max_tokens": 2}, stream=stream)
            following.headers = HEADERS
            await following.run()
            assert following.status == 200
    assert b'"cancelled"' in lines[0]
    assert app.decode_engine.busy == {}
