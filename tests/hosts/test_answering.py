"""Answers under every server and in every kind of app: in time, whole, or visibly broken."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count

import pytest

from tests.hosts.answers import Answer, read, read_one
from tests.hosts.faults import Fault, Turnstile
from tests.hosts.servers import Host
from tests.hosts.sites import Site
from tilert_engine.scripted import Script
from tilert_stream.errors import EngineFault
from tilert_stream.testing.apps import ScriptedApp


async def test_http_01_every_token_leaves_before_the_next_is_made(site: Site) -> None:
    turnstile = Turnstile(4)
    app = ScriptedApp(turnstile.script)
    async with site.serve(app) as address:
        with turnstile:
            client = address.post(stream=True, max_tokens=5)
            answer = b""
            for gate, letter in zip(turnstile.gates, "the q", strict=False):
                await gate.arrival()
                answer += await client.until(f'"text":"{letter}"'.encode())
                gate.open()
            answer += await client.read_all()
    streamed = read(answer)
    assert (streamed.status, streamed.complete) == (200, True)
    assert streamed.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert streamed.headers[b"cache-control"] == b"no-cache, no-transform"
    assert streamed.headers[b"x-accel-buffering"] == b"no"
    assert streamed.text == "the q"
    assert streamed.events[-1] == b"[DONE]"


async def test_a_plain_answer(site: Site) -> None:
    async with site.serve(ScriptedApp()) as address:
        client = address.post(stream=False, max_tokens=5)
        answer = read(await client.read_all())
    assert (answer.status, answer.complete) == (200, True)
    assert answer.headers[b"content-length"] == str(len(answer.body)).encode()
    assert answer.json["choices"][0]["text"] == "the q"


OURS = "tilert_stream.asgi.response"
"""Says why a request failed; the rest of a log is the server's."""


async def test_err_01_a_failed_stream_is_cut(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    uvicorn = site.host.name.startswith("uvicorn")
    gates = ExitStack()
    fault = Fault(2, gates)
    app = ScriptedApp(fault.script)
    async with site.serve(app) as address:
        with gates:
            client = address.post(stream=True, headers=())
            begun = await client.until(b'"text":"t"')
            fault.strike()
            answer = read(begun + await client.read_all())
        assert app.service.ledger.counts == {}
    assert answer.status == 200
    assert b'"code":"engine_fault"' in answer.events[-1]
    assert b"[DONE]" not in answer.body
    assert not answer.complete, "the client sees that the answer has no end"
    noise = {
        record.name: record.getMessage()
        for record in caplog.records
        if record.levelno > logging.INFO
    }
    assert "failed after its answer had begun: 500 engine_fault" in noise.pop(OURS)
    assert list(noise.values()) == (
        ["ASGI callable returned without completing response."] if uvicorn else []
    )


async def test_a_cut_is_silent_to_an_old_client(host: Host) -> None:
    """Where the end of the connection is the end of the body, nothing tells them apart."""
    gates = ExitStack()
    fault = Fault(2, gates)
    async with Site(host).serve(ScriptedApp(fault.script)) as address:
        with gates:
            client = address.post(stream=True, version="1.0", headers=())
            begun = await client.until(b'"text":"t"')
            fault.strike()
            raw = begun + await client.read_all()
    assert b'"code":"engine_fault"' in raw
    assert b"[DONE]" not in raw
    assert not raw.endswith(b"0\r\n\r\n")


CHUNKS_FOR_OLD_CLIENTS = ("uvicorn-httptools", "uvicorn-httptools-uvloop")
"""They read the sizes of chunks as a part of the answer."""


async def test_http_03_old_clients(host: Host) -> None:
    async with Site(host).serve(ScriptedApp()) as address:
        client = address.post(stream=True, version="1.0", headers=(), max_tokens=5)
        raw = await client.read_all()
    head, _, body = raw.partition(b"\r\n\r\n")
    if host.name in CHUNKS_FOR_OLD_CLIENTS:
        assert b"transfer-encoding: chunked" in head.lower()
    else:
        assert b"transfer-encoding" not in head.lower()
        assert body.startswith(b"data: ")
        assert body.endswith(b"data: [DONE]\n\n")


async def test_the_next_request_on_a_connection(host: Host) -> None:
    """Behind an answer of each kind: streamed, plain, failed before its first byte, refused."""
    prompts = count()

    def fail_two_of_four(_chunk: int) -> None:
        if next(prompts) % 4 >= 2:
            raise EngineFault("no memory")

    app = ScriptedApp(Script(before_chunk=fail_two_of_four))
    async with Site(host).serve(app) as address:
        client = address.connect()
        answers: list[Answer] = []
        for stream, max_tokens in ((True, 2), (False, 2), (True, 2), (False, 2), (True, 0)) * 2:
            client.post(stream=stream, max_tokens=max_tokens, headers=())
            answers.append(await read_one(client))
    assert [answer.status for answer in answers] == [200, 200, 500, 500, 400] * 2


class Broken:
    """A tokenizer with a bug."""

    tokens: Mapping[int, str] = {}

    def encode(self, _text: str, /, *, add_special_tokens: bool) -> tuple[int, ...]:
        raise ZeroDivisionError("/etc/secret is no number")

    def decode(self, _ids: Iterable[int], /, *, skip_special_tokens: bool) -> str:
        raise NotImplementedError


async def test_what_nobody_has_foreseen_is_an_error_object_too(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    app = ScriptedApp()
    sound = app.card
    async with site.serve(app) as address:
        for stream in (True, False):
            app.card = replace(sound, tokenizer=Broken())
            answer = read(await address.post(stream=stream, max_tokens=5).read_all())
            assert (answer.status, answer.complete) == (500, True)
            error = answer.json["error"]
            assert (error["type"], error["param"]) == ("server_error", None)
            assert error["code"] == "internal_error"
            assert b"secret" not in answer.body
            (told,) = [record for record in caplog.records if record.exc_info is not None]
            assert told.name == "tilert_stream.asgi.endpoint"
            assert answer.headers[b"x-request-id"].decode() in told.getMessage()
            caplog.clear()
        app.card = sound
        answer = read(await address.post(stream=False, max_tokens=5).read_all())
        assert (answer.status, answer.json["choices"][0]["text"]) == (200, "the q")
    assert app.service.ledger.counts == {}
