"""What a request holds at its nodes goes by its lease alone, whatever its tasks are doing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
import pytest

from tests.nodes.routing import Router, make, routing
from tests.nodes.test_early_visits import Standing, met, requests
from tilert_stream.errors import Cancelled
from tilert_stream.events import Reserved
from tilert_stream.nodes.remote import RemoteDecode
from tilert_stream.nodes.remote_prefill import RemotePrefill
from tilert_stream.scope import RequestScope
from tilert_stream.testing import make_scope


@dataclass
class Legs:
    """One request, ``cafe``, whose steps the test takes by itself."""

    router: Router
    scope: RequestScope
    decode: RemoteDecode
    prefill: RemotePrefill

    async def reserve(self) -> Reserved:
        return await self.decode.reserve(self.scope.request, self.scope)


@asynccontextmanager
async def legs(standing: Standing) -> AsyncGenerator[Legs]:
    async with routing(standing.prefills, standing.decode) as router:
        await met(router)
        prefill = RemotePrefill(router.prefills)
        decode = RemoteDecode(router.decodes, router.janitor, router.keeper, prefill=prefill)
        with make_scope(make(9, "cafe")) as scope:
            yield Legs(router, scope, decode, prefill)
            standing.let_go()
            scope.lease.release("over")
            await router.everything_is_back()


async def test_dis_02_the_lease_stops_prefill() -> None:
    standing = Standing()
    standing.may_reserve.set()
    async with legs(standing) as one:
        reserved = await one.reserve()

        async def prefill() -> None:
            with pytest.raises(Cancelled, match="ended before prefill had answered"):
                await one.prefill.prefill(reserved, one.scope)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prefill)
            await standing.prefilling.wait()
            await anyio.wait_all_tasks_blocked()
            one.scope.lease.release("the client has left")
        assert requests(one.router) == [0]
        while not standing.prefills[0].aborted:
            await anyio.lowlevel.checkpoint()
        while standing.decode.cancelled != ["cafe"]:
            await anyio.lowlevel.checkpoint()


async def test_dis_02_an_early_prefill_ends_with_a_lease_that_was_released_before() -> None:
    """Between its slot and the answer nobody else would give it up."""
    standing = Standing()
    standing.may_reserve.set()
    async with legs(standing) as one:
        reserved = await one.reserve()
        assert requests(one.router) == [1]
        with make_scope(replace(one.scope.request)) as ended:
            ended.lease.release("by a time limit")
            with pytest.raises(Cancelled):
                await one.prefill.prefill(reserved, ended)
        assert requests(one.router) == [0]
        while not standing.prefills[0].aborted:
            await anyio.lowlevel.checkpoint()
