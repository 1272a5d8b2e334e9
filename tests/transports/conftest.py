"""Every test of a transport also proves that the event loop is never blocked by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx


@pytest.fixture(autouse=True)
def _no_blocking_in_the_loop() -> Iterator[BlockBuster]:
    with blockbuster_ctx("tilert_transports") as blockbuster:
        yield blockbuster
