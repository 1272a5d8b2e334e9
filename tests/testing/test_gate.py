"""The gate holds threads, says when the first has come, and lets all go."""

from __future__ import annotations

import threading

import pytest

from tilert_stream.testing import Gate


async def test_a_thread_stands_at_the_gate_until_it_is_opened() -> None:
    passed: list[int] = []

    def walk(number: int) -> None:
        gate.pass_through(number)
        passed.append(number)

    with Gate() as gate:
        thread = threading.Thread(target=walk, args=(7,))
        thread.start()
        assert await gate.arrival() == 7
        assert passed == []
        gate.open()
        thread.join()
        assert passed == [7]
        gate.pass_through(8)
        assert await gate.arrival() == 7, "the first arrival is the one that counts"


async def test_a_test_that_fails_leaves_no_thread_at_the_gate() -> None:
    gate = Gate()
    thread = threading.Thread(target=gate.pass_through, args=(1,))

    async def fail() -> None:
        with gate:
            thread.start()
            await gate.arrival()
            raise ValueError("the test failed")

    with pytest.raises(ValueError, match="the test failed"):
        await fail()
    thread.join()
    assert not thread.is_alive()
