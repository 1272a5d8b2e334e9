"""The app that servers are started with from their command lines, in a process of its own.

``POST /v1/…`` as ever, but the engine stands before chain 5 until ``GET /held`` was asked. That is
answered when no request is left in the app, with what they still hold.
"""

from __future__ import annotations

import threading

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tests.hosts.sites import Door
from tilert_engine.scripted import Script
from tilert_stream.testing.apps import ScriptedApp

let_go = threading.Event()


def stand(turn: int) -> None:
    if turn == 5:
        let_go.wait()


llm = ScriptedApp(Script(before_chain=stand))
door = Door(llm)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" and scope["path"] == "/held":
        await door.until_empty()
        let_go.set()
        await JSONResponse(dict(llm.service.ledger.counts))(scope, receive, send)
        return
    await door(scope, receive, send)
