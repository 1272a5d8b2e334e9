"""Paths that are looked up behave as those that a router finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.routing import Mount, Route, Router
from starlette.types import Receive, Scope, Send

from tilert_stream.asgi.fixed_paths import FixedPaths
from tilert_stream.testing.apps import ScriptedApp

Request = Callable[..., Any]


class Named:
    """An endpoint that keeps the scopes of its requests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.name.encode()})


@pytest.fixture
def fixed() -> Named:
    return Named("fixed")


@pytest.fixture
def apps(fixed: Named) -> tuple[Router, FixedPaths]:
    """The same routes, searched and looked up."""
    route = Route("/v1/fixed", fixed)
    router = Router([route, Route("/v1/{name:path}", Named("other"))], redirect_slashes=False)
    return router, FixedPaths(router, [route])


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/fixed",
        "/v1/fixed/",
        "/v1//fixed",
        "/v1/fixed\n",
        "/V1/fixed",
        "/v1/fixe",
        "/nowhere",
        "",
        "*",
    ],
)
async def test_every_request_is_answered_as_by_the_router(
    request_to: Request, apps: tuple[Router, FixedPaths], method: str, path: str
) -> None:
    router, looked_up = apps
    searched = await request_to(router, path, method=method).run()
    found = await request_to(looked_up, path, method=method).run()
    assert found.sent == searched.sent
    assert found.scope == searched.scope


async def test_what_stood_in_the_scope_stays_there(
    request_to: Request, apps: tuple[Router, FixedPaths], fixed: Named
) -> None:
    outer, params = object(), {"tenant": "a"}
    for app in apps:
        exchange = request_to(app, "/v1/fixed")
        exchange.scope |= {"app": outer, "router": outer, "path_params": params}
        await exchange.run()
    searched, found = fixed.scopes
    assert searched == found
    assert found["app"] is found["router"] is outer
    assert found["path_params"] == {"tenant": "a"}
    assert found["path_params"] is not params


@pytest.mark.parametrize(
    ("root_path", "path"),
    [
        ("/llm", "/llm/v1/fixed"),
        ("/llm", "/v1/fixed"),
        ("/v1", "/v1/fixed"),
        ("/v1/fixed", "/v1/fixed"),
        ("/llm", "/llmv1/fixed"),
    ],
)
async def test_below_a_root_path_the_router_decides(
    request_to: Request, apps: tuple[Router, FixedPaths], root_path: str, path: str
) -> None:
    answers: list[Any] = []
    for app in apps:
        exchange = request_to(app, path)
        exchange.scope["root_path"] = root_path
        answers.append(await exchange.run())
    assert answers[0].sent == answers[1].sent
    assert answers[0].scope == answers[1].scope


async def test_mounted_it_is_found_below_its_mount(
    request_to: Request, apps: tuple[Router, FixedPaths], fixed: Named
) -> None:
    for app in apps:
        mounted = Router([Mount("/llm", app=app)])
        answer = await request_to(mounted, "/llm/v1/fixed").run()
        assert answer.content == b"fixed"
    assert [scope["root_path"] for scope in fixed.scopes] == ["/llm", "/llm"]


async def test_a_websocket_is_no_request(
    request_to: Request, apps: tuple[Router, FixedPaths], fixed: Named
) -> None:
    exchange = request_to(apps[1], "/v1/fixed")
    exchange.scope["type"] = "websocket"
    await exchange.run()
    assert [message["type"] for message in exchange.sent] == ["websocket.close"]
    assert fixed.scopes == []


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/inference/v1/generate"]
)
async def test_a_generating_path_says_what_may_be_done_there(
    request_to: Request, path: str
) -> None:
    app = ScriptedApp()
    for method in ("GET", "HEAD", "OPTIONS", "PUT"):
        answer = await request_to(app, path, method=method).run()
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert answer.scope["route"].path == path
