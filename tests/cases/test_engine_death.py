"""An engine that dies under a served app, from the command's entry to its exit code."""

from __future__ import annotations

import http.client
import logging
import threading
from typing import Literal

import orjson
import pytest

from tests.cases.asking import LIMIT, ByteApp, at
from tilert_engine.scripted import Script
from tilert_stream.asgi import App
from tilert_stream.config import ServeConfig
from tilert_stream.http.scope import Address
from tilert_stream.serve import all_in_one


class Asker(threading.Thread):
    """A client of its own thread: the server has this test's."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.port = 0
        self.body = b""
        self.complete = True

    def ask(self, address: Address, *_card: object, **_options: object) -> None:
        self.port = address[1] or 0
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        body = orjson.dumps({"prompt": "abc", "max_tokens": 2000, "stream": True})
        connection.request("POST", "/v1/completions", body)
        try:
            self.body = connection.getresponse().read()
        except http.client.IncompleteRead as error:
            self.body, self.complete = error.partial, False
        connection.close()


@pytest.mark.parametrize(
    ("backend", "uvloop"), [("asyncio", False), ("asyncio", True), ("trio", False)]
)
def test_err_01_a_dead_engine_ends_the_answer_and_the_process(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    backend: Literal["asyncio", "trio"],
    uvloop: bool,
) -> None:
    """Five tokens, an error event, no end; and the exit code that makes a supervisor start anew."""

    def die(_turn: int) -> None:
        raise RuntimeError("device lost")

    app = ByteApp(Script(before_chain=at(4, die)))
    asker = Asker()

    def build(_config: ServeConfig) -> App:
        return app

    monkeypatch.setattr(all_in_one, "build_app", build)
    monkeypatch.setattr(all_in_one, "announce", asker.ask)
    code = all_in_one.run(ServeConfig(port=0, backend=backend, uvloop=uvloop, drain_timeout=LIMIT))
    asker.join(LIMIT)
    assert code == 70
    assert not asker.complete, "cut: no last chunk"
    *texts, error = [orjson.loads(event[6:]) for event in asker.body.strip().split(b"\n\n")]
    assert "".join(chunk["choices"][0]["text"] for chunk in texts) == "abcab"
    assert {chunk["choices"][0]["finish_reason"] for chunk in texts} == {None}
    assert not any(chunk.get("usage") for chunk in texts)
    assert error["error"]["code"] == "engine_died"
    assert "device lost" not in error["error"]["message"]
    assert app.service.ledger.counts == {}
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.CRITICAL] == [
        "the engine died; the server is shutting down"
    ]
