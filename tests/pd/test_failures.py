"""Processes that are killed, stopped and started again under load: the next request is served."""

from __future__ import annotations

import signal

import anyio
import anyio.lowlevel
import pytest

from tests.pd.processes import ProcessCluster

SOAK = pytest.mark.soak
WHOLE = ("abc" * 10)[:30]


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The processes run on their own loops; one is enough for the client."""
    return str(request.param)


class Load:
    """Clients that ask again and again; every answer is whole, or says that it is not."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster
        self._whole = 0
        self._grown = anyio.Event()

    async def run(self) -> None:
        while True:
            answer = await self._cluster.ask()
            if answer is None:
                await anyio.lowlevel.checkpoint()
            elif answer.whole:
                assert answer.text == WHOLE, "an answer that says it is whole"
                self._whole += 1
                self._grown.set()
            else:
                assert answer.finish_reason is None, "a failure is never a finish"
                assert not answer.complete or answer.status >= 400

    async def more(self, count: int) -> None:
        """Wait for so many more whole answers."""
        goal = self._whole + count
        while self._whole < goal:
            self._grown = anyio.Event()
            await self._grown.wait()


WAYS = [
    pytest.param(
        which,
        how,
        transport,
        id=f"{which} {how}, {transport}",
        # The ordinary run has the two that lose a KV cache or a slot.
        marks=() if (how, transport) == ("killed", "tcp") and which != "router" else SOAK,
    )
    for which in ("decode", "prefill", "router")
    for how in ("killed", "stopped")
    for transport in ("tcp", "shm")
]


@pytest.mark.parametrize(("which", "how", "transport"), WAYS)
async def test_a_process_that_fails_under_load(transport: str, which: str, how: str) -> None:
    with ProcessCluster(transport).running() as cluster:
        node = cluster.nodes[which]
        await cluster.served()
        load = Load(cluster)
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(load.run)
                await load.more(20)
                if how == "killed":
                    node.kill()
                    if which == "decode":
                        await cluster.served()  # by the other one, while this one is away
                    node.start()
                else:
                    node.signal(signal.SIGSTOP)
                    if which == "decode":
                        await cluster.served()
                    node.signal(signal.SIGCONT)
                await load.more(20)
                tasks.cancel_scope.cancel()
        for number in range(2):
            await cluster.idle(number)
        answer = await cluster.served()
        assert answer.text == WHOLE
