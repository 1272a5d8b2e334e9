"""The app inside another app: beside its routes, below its middleware, in its lifespan."""

from __future__ import annotations

import pytest

from tests.hosts.answers import read
from tests.hosts.sites import SITES, Site
from tilert_stream.testing.apps import ScriptedApp


@pytest.fixture(params=[site for site in SITES if site.mount], ids=lambda site: site.name)
def site(request: pytest.FixtureRequest) -> Site:
    chosen: Site = request.param
    return chosen


async def test_a_mounted_app(site: Site) -> None:
    app = ScriptedApp()
    async with site.serve(app) as address:
        home = address.connect()
        home.get("/")
        page = read(await home.read_all())
        answer = read(await address.post(stream=True, max_tokens=3).read_all())
        lost = address.connect()
        lost.get("/llm/v1/nothing")
        error = read(await lost.read_all())
        assert app.service.ready
    assert not app.service.ready
    assert page.status == 200
    if site.mount == "starlette":
        assert page.body == b"the host's own page"
    else:
        assert page.json == {"ready": True}
        assert answer.headers[b"x-served-by"] == str(site.mount).encode()
    assert (answer.status, answer.text, answer.complete) == (200, "the", True)
    assert (error.status, error.json["error"]["code"]) == (404, "not_found")
