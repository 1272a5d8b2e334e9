"""Pages of other origins, where the server wants keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilert_stream.testing.apps import ScriptedApp

Request = Callable[..., Any]
PAGE = "https://chat.example"


class OpenToPage(ScriptedApp):
    """An app that wants a key, and lets one origin's pages read its answers."""

    def __init__(self) -> None:
        super().__init__(api_keys=("sk-1",), cors_origins=(PAGE,))


async def test_a_browser_asks_for_leave_without_a_key(request_to: Request) -> None:
    app = OpenToPage()
    async with app.lifespan():
        asked = await request_to(
            app,
            method="OPTIONS",
            headers={
                "origin": PAGE,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization, content-type",
            },
        ).run()
    assert asked.status == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert "POST" in asked.headers["access-control-allow-methods"]
    allowed = asked.headers["access-control-allow-headers"].lower()
    assert {"authorization", "content-type"} <= set(allowed.replace(" ", "").split(","))


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        ("sk-1", "/v1/models", 200),
        ("wrong", "/v1/models", 401),
        ("sk-1", "/nowhere", 404),
    ],
)
async def test_a_page_may_read_answers_and_errors(
    request_to: Request, key: str, path: str, status: int
) -> None:
    app = OpenToPage()
    headers = {"origin": PAGE, "authorization": f"Bearer {key}"}
    async with app.lifespan():
        answer = await request_to(app, path, headers=headers).run()
    assert answer.status == status
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()


async def test_other_origins_are_not_let_in(request_to: Request) -> None:
    app = OpenToPage()
    async with app.lifespan():
        answer = await request_to(
            app,
            "/v1/models",
            headers={"origin": "https://other.example", "authorization": "Bearer sk-1"},
        ).run()
    assert "access-control-allow-origin" not in answer.headers
