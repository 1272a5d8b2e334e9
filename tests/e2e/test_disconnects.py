"""Clients that leave at random, in every phase, every way: INV-1 and INV-2.

Two hundred of them in the ordinary run, two thousand in the soak, on each backend.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from tests.visits import crowd, whole_answers
from tilert_engine.scripted import Script
from tilert_stream.asgi import App
from tilert_stream.testing.apps import ScriptedApp

Serve = Callable[[App], AbstractAsyncContextManager[int]]

SLOTS = 3


@pytest.mark.parametrize(
    "count", [200, pytest.param(2000, marks=pytest.mark.soak)], ids=["short", "soak"]
)
async def test_inv_2_random_disconnects(serve: Serve, count: int) -> None:
    app = ScriptedApp(Script(chunks=3, chain=lambda turn: 1 + turn % 3), slots=SLOTS)
    async with serve(app) as port:
        await crowd(port, app, count)
        # Every slot still serves, to the last token.
        answers = await whole_answers(port, SLOTS)
    # The server has drained: all that the requests held is back.
    assert all(b"data: [DONE]" in answer for answer in answers)
    assert app.service.ledger.counts == {}
    assert app.decode_engine.busy == {}
