"""What holds for every test: its backends, how long it may take, and a loop that is never blocked.

Every async test runs on asyncio, asyncio with uvloop, and trio.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import HealthCheck, settings

# No example fails because the machine is slow.
settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

BACKENDS = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", dict[str, object]()), id="trio"),
]


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def _no_blocking_in_the_loop() -> Iterator[BlockBuster]:
    """Fail a test in which the library blocks the event loop."""
    with blockbuster_ctx(
        "tilert_stream",
        # It only steps tasks, a test's own among them.
        excluded_modules=["tilert_stream.wakeup"],
    ) as blockbuster:
        yield blockbuster
