"""A router's calls leave when a request is opened, before its stages are made."""

from __future__ import annotations

import socket

import anyio
import pytest

from tests.nodes.routing import Plain, Router, letters, make, routing
from tests.nodes.test_early_visits import met
from tests.nodes.test_remote_early import WHOLE
from tilert_stream.errors import InvalidRequest
from tilert_stream.events import GenerateRequest, Limits
from tilert_stream.scope import RequestScope
from tilert_stream.testing.pd_nodes import ScriptedDecodeNode, ScriptedPrefillNode


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the requests that have gone to some node, in order."""
    paths: list[str] = []
    send = socket.socket.send

    def note(sock: socket.socket, data: bytes, flags: int = 0, /) -> int:
        line = bytes(data[:200]).split(b"\r\n")[0].split(b" ")
        if line[0] == b"POST":
            paths.append(line[1].decode())
        return send(sock, data, flags)

    monkeypatch.setattr(socket.socket, "send", note)
    return paths


def nodes() -> tuple[ScriptedPrefillNode, ScriptedDecodeNode]:
    return ScriptedPrefillNode(), ScriptedDecodeNode(token=letters)


async def test_both_calls_have_left_when_the_block_is_entered(sent: list[str]) -> None:
    made_after: list[list[str]] = []
    turned = anyio.Event()

    async def turn() -> None:
        turned.set()

    class Noting(Plain):
        def __init__(self, scope: RequestScope) -> None:
            super().__init__(scope)
            made_after.append(list(sent))

    prefill, decode = nodes()
    async with routing(prefill, decode) as router:
        await met(router)
        sent.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turn)
            async with router.service.open(make(3, "cafe"), Noting) as stream:
                assert sent == ["/v1/completions", "/pd/reserve"]
                assert made_after == [sent]
                assert not turned.is_set(), "no turn of the loop was needed"
                async for _ in stream:
                    pass
        await router.everything_is_back()
        assert [path for path in sent if path != "/pd/renew"] == [
            "/v1/completions",
            "/pd/reserve",
            "/pd/decode",
        ]
        assert [call["request_id"] for call in prefill.calls] == ["feed", "cafe"]


@pytest.mark.parametrize(
    "request_",
    [make(Limits(0), "cafe"), GenerateRequest("cafe", (), Limits(3))],
    ids=["max_tokens", "prompt"],
)
async def test_what_will_be_refused_sends_nothing(
    request_: GenerateRequest, sent: list[str]
) -> None:
    async with routing(*nodes()) as router:
        await met(router)
        sent.clear()
        assert isinstance(await router.error_of(request_), InvalidRequest)
        await router.everything_is_back()
        assert sent == []


async def leave_at_once(router: Router, rid: str) -> None:
    async with router.service.open(make(3, rid), Plain):
        pass


async def test_a_reader_that_leaves_before_the_first_step(sent: list[str]) -> None:
    """Both calls have left: the decode node is told, and the next request finds its slot free."""
    prefill, decode = nodes()
    async with routing(prefill, decode) as router:
        await met(router)
        sent.clear()
        await leave_at_once(router, "cafe")
        assert sent[:2] == ["/v1/completions", "/pd/reserve"]
        await router.everything_is_back()
        assert decode.cancelled == ["cafe"]
        assert [status.requests for status in router.prefills.status()] == [0]
        assert [status.requests for status in router.decodes.status()] == [0]
        assert await router.answer(make(3, "b1")) == WHOLE
        await router.everything_is_back()
        assert "cafe" not in decode.held


async def test_a_reader_that_leaves_before_anything_could_be_foretold() -> None:
    prefill, decode = nodes()
    async with routing(prefill, decode) as router:
        await leave_at_once(router, "cafe")
        await router.everything_is_back()
        assert [status.requests for status in router.decodes.status()] == [0]
        assert prefill.calls == []
        assert await router.answer(make(3, "b1")) == WHOLE
