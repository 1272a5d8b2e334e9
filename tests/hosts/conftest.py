"""A test of this room that takes ``site`` or ``host`` runs on each, in the event loop it brings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hosts.servers import HOSTS, Host
from tests.hosts.sites import SITES, Site


@pytest.fixture(params=HOSTS, ids=lambda host: host.name)
def host(request: pytest.FixtureRequest) -> Host:
    chosen: Host = request.param
    return chosen


@pytest.fixture(params=SITES, ids=lambda site: site.name)
def site(request: pytest.FixtureRequest) -> Site:
    chosen: Site = request.param
    return chosen


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    where = request.getfixturevalue("site" if "site" in request.fixturenames else "host")
    return (where.host if isinstance(where, Site) else where).backend
