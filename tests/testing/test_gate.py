from __future__ import annotations

import threading

import anyio

from tilert_stream.testing import Gate


async def test_a_thread_stands_at_the_gate_until_it_opens() -> None:
    passed: list[int] = []
    with Gate() as gate:

        def work() -> None:
            gate.pass_through(7)
            passed.append(7)

        thread = threading.Thread(target=work)
        thread.start()
        assert await gate.arrival() == 7
        assert await gate.arrival() == 7, "asked again it says the same"
        assert passed == []
        gate.open()
        await anyio.to_thread.run_sync(thread.join)
        assert passed == [7]
        gate.pass_through(8)
        assert await gate.arrival() == 7, "the first one counts"


async def test_leaving_the_block_opens_it() -> None:
    gate = Gate()
    thread = threading.Thread(target=gate.pass_through, args=(1,))
    with gate:
        thread.start()
        await gate.arrival()
        assert thread.is_alive()
    await anyio.to_thread.run_sync(thread.join)
