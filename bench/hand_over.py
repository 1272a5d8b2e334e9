"""One KV cache of 1 MB from prefill's staging into a decode node's region, with all that is said.

In: a transport's name. Out: microseconds from the claim to the region's being reported ready; the
grant is told in between, so that from there on it is less.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import anyio

from tilert_engine.layouts.gqa import GqaLayout
from tilert_stream.nodes.hand_over.courier import open_courier
from tilert_stream.nodes.hand_over.destination import Destination, Grant
from tilert_stream.nodes.hand_over.parcel import Parcel
from tilert_stream.nodes.landing_port import LandingPort
from tilert_transports.registry import make

if TYPE_CHECKING:
    from tilert_stream.nodes.hand_over.courier import NodeCourier

__all__ = ("hand_overs",)

LAYOUT: Final = GqaLayout(
    model="bench", layers=79, kv_heads=1, head_dim=64, dtype="float16", max_seq_len=256
)
TOKENS: Final = 52
"""1.05 MB in 158 segments."""
DIGEST: Final = "0" * 16


async def hand_overs(kind: str, count: int, *, warm_up: int = 20) -> list[float]:
    """Hand one cache over after another, connected once; each one's time in µs."""
    times: list[float] = []
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(
            LandingPort(LAYOUT, transport=kind, slots=1, regions=3, host="127.0.0.1", port=0)
        )
        nbytes = LAYOUT.staging_bytes(TOKENS)
        courier = await stack.enter_async_context(
            open_courier(make(kind), LAYOUT, rank=0, staging_bytes=nbytes, send_timeout=30)
        )
        for number in range(warm_up + count):
            took = await _one(port, courier, f"r{number}", nbytes)
            if number >= warm_up:
                times.append(took * 1e6)
    return times


async def _one(port: LandingPort, courier: NodeCourier, request: str, nbytes: int) -> float:
    landing = port.reserve(request, TOKENS)
    granted = landing.granted
    grant = Grant(request, granted.incarnation, granted.generation)
    destination = Destination("127.0.0.1", port.port, grant)
    parcel = Parcel(request, destination, TOKENS, 0, DIGEST, 0, nbytes)
    begin = took = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(courier.deliver, parcel)
        await landing.wait()
        took = time.perf_counter() - begin
    landing.take()
    landing.release("measured")
    return took
