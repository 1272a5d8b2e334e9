"""What a request leaves: nothing that Python would have to look for."""

from __future__ import annotations

import gc
import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tilert_stream.testing.apps import ScriptedApp

if TYPE_CHECKING:
    from .conftest import Serving

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5}


@contextmanager
def unreachable() -> Generator[list[str]]:
    """Names of the library's objects that only a collection frees, of those that a block leaves."""
    names: list[str] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield names
        gc.collect()
        for left in gc.garbage:
            name = getattr(left, "__qualname__", type(left).__qualname__)
            module = getattr(left, "__module__", None) or type(left).__module__
            if str(module).startswith("tilert_"):
                names.append(f"{module}.{name}")
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_freed_with_the_last_word_of_it(
    serving: Serving, *, stream: bool
) -> None:
    body = json.dumps(CHAT | {"stream": stream}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
    app = ScriptedApp()
    async with app.lifespan(), serving(app) as running:
        client = await running.connect()

        async def ask() -> None:
            await client.send(request)
            if stream:
                assert b"[DONE]" in await client.until(b"\r\n0\r\n\r\n")
            else:
                assert b"200 OK" in await client.answer()

        await ask()
        with unreachable() as left:
            for _ in range(3):
                await ask()
        assert left == []
