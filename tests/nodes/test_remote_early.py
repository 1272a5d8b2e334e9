"""Prefill asked while its slot is: what each of the two may say, and that nothing stays behind."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.nodes.routing import letters, make, routing
from tilert_stream.errors import Busy, ContextLengthExceeded
from tilert_stream.events import Finished
from tilert_stream.testing.pd_nodes import Answer, ScriptedDecodeNode, ScriptedPrefillNode

WHOLE = ("abc", 3, Finished("length"))


class Meeting:
    """Holds each reservation until prefill has been asked for its request."""

    def __init__(self, answer: Answer | None = None, **options: Any) -> None:
        self.asked = anyio.Event()
        self.answer = answer
        self.on = False
        self.decode = ScriptedDecodeNode(
            token=letters, hooks={"/pd/reserve": self._reserve}, **options
        )
        self.prefill = ScriptedPrefillNode(before_answer=self._prefill)

    async def _reserve(self, _fields: dict[str, Any]) -> Answer | None:
        if not self.on:
            return None
        await self.asked.wait()
        return self.answer

    async def _prefill(self, _fields: dict[str, Any]) -> None:
        self.asked.set()
        if self.on and self.answer is not None:
            await anyio.sleep_forever()

    def meet(self) -> None:
        """From now on a reservation is answered only when prefill works."""
        self.on = True
        self.asked = anyio.Event()


async def test_prefill_is_told_the_grant_that_the_node_will_give() -> None:
    meeting = Meeting()
    async with routing(meeting.prefill, meeting.decode) as router:
        assert await router.answer(make(3)) == WHOLE
        await router.everything_is_back()
        assert "generation" not in meeting.decode.calls[0][1], "nothing is known of the node yet"
        meeting.meet()
        assert await router.answer(make(3, "cafe")) == WHOLE
        asked = next(f for _, f in meeting.decode.calls if f.get("rid") == "cafe")
        params = meeting.prefill.calls[1]["kv_transfer_params"]
        assert params["tilert_generation"] == asked["generation"] >= 2**32
        assert params["tilert_incarnation"] == "one"
        assert len(meeting.prefill.calls) == 2
        meeting.on = False


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(429, b'{"error":"busy","code":"slots_busy"}'), Busy),
        (Answer(400, b'{"error":"long","code":"context_length_exceeded"}'), ContextLengthExceeded),
    ],
)
async def test_a_refused_slot_takes_prefill_back(answer: Answer, error: type[Exception]) -> None:
    meeting = Meeting(answer)
    async with routing(meeting.prefill, meeting.decode) as router:
        assert await router.answer(make(3)) == WHOLE
        await router.everything_is_back()
        meeting.meet()
        assert isinstance(await router.error_of(make(3, "cafe")), error)
        await router.everything_is_back()
        assert meeting.prefill.aborted == 1
        meeting.on = False


async def test_another_grant_than_the_foretold_one_has_prefill_asked_again() -> None:
    """As by a node that was restarted meanwhile, and counts its grants anew."""
    meeting = Meeting()
    async with routing(meeting.prefill, meeting.decode) as router:
        assert await router.answer(make(3)) == WHOLE
        await router.everything_is_back()

        async def granted_otherwise(fields: dict[str, Any]) -> None:
            await meeting.asked.wait()
            del fields["generation"]

        meeting.meet()
        meeting.decode.hooks["/pd/reserve"] = granted_otherwise
        assert await router.answer(make(3, "cafe")) == WHOLE
        generations = [
            call["kv_transfer_params"]["tilert_generation"] for call in meeting.prefill.calls
        ]
        assert generations[1] >= 2**32
        assert generations[2] == 2
        del meeting.decode.hooks["/pd/reserve"]
        meeting.on = False


async def test_a_reader_that_leaves_while_both_are_asked() -> None:
    meeting = Meeting(Answer(500, b""))
    async with routing(meeting.prefill, meeting.decode) as router:
        assert await router.answer(make(3)) == WHOLE
        await router.everything_is_back()
        meeting.meet()
        never = anyio.Event()

        async def hold(_fields: dict[str, Any]) -> None:
            await never.wait()

        meeting.decode.hooks["/pd/reserve"] = hold
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(router.answer, make(3, "cafe"))
            await meeting.asked.wait()
            tasks.cancel_scope.cancel()
        await router.everything_is_back()
        assert meeting.prefill.aborted == 1
        assert meeting.decode.cancelled == ["cafe"]
        del meeting.decode.hooks["/pd/reserve"]
        meeting.on = False


async def test_a_full_node_is_asked_first() -> None:
    """With all its slots in this router's hands, prefill waits for what the node says."""
    entered = anyio.Event()
    leave = anyio.Event()

    async def pause(_index: int) -> None:
        entered.set()
        await leave.wait()

    meeting = Meeting(slots=1, between=pause)
    async with (
        routing(meeting.prefill, meeting.decode) as router,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(router.answer, make(3))
        await entered.wait()
        assert isinstance(await router.error_of(make(3, "cafe")), Busy)
        assert len(meeting.prefill.calls) == 1
        leave.set()


async def test_a_slot_that_was_lost_is_asked_for_by_another_name() -> None:
    """What is still said of the first one, by a prefill that was taken back, is not of this."""
    lost = anyio.Event()

    async def lose_it(fields: dict[str, Any]) -> None:
        if fields["request_id"] == "cafe" and not lost.is_set():
            await granted.wait()
            lost.set()
            decode.held.clear()
            await anyio.sleep_forever()

    async def see(fields: dict[str, Any]) -> None:
        if fields["rid"] == "cafe":
            granted.set()

    granted = anyio.Event()
    prefill = ScriptedPrefillNode(before_answer=lose_it)
    decode = ScriptedDecodeNode(ttl=0.03, token=letters, hooks={"/pd/renew": see})
    async with routing(prefill, decode) as router:
        assert await router.answer(make(3)) == WHOLE
        await router.everything_is_back()
        assert await router.answer(make(3, "cafe")) == WHOLE
        first, second = (
            fields
            for path, fields in decode.calls
            if path == "/pd/reserve" and fields["rid"] == "cafe"
        )
        assert first["generation"] >= 2**32
        assert "generation" not in second
        await router.everything_is_back()


class HeldOnce:
    """A prefill that never answers its first call for one request, and whoever waits for that."""

    def __init__(self, rid: str) -> None:
        self.rid = rid
        self.asked = anyio.Event()
        self.node = ScriptedPrefillNode(before_answer=self._hold)

    async def _hold(self, fields: dict[str, Any]) -> None:
        if fields["request_id"] == self.rid and not self.asked.is_set():
            self.asked.set()
            await anyio.sleep_forever()

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [call for call in self.node.calls if call["request_id"] == self.rid]


async def test_another_node_than_the_foretold_one_grants() -> None:
    """Prefill is asked again, for the node that has the slot; the first one is told of the end."""
    held = HeldOnce("cafe")

    async def fail(fields: dict[str, Any]) -> Answer | None:
        if fields["rid"] != "cafe":
            return None
        await held.asked.wait()
        return Answer(500, b"{}")

    sick = ScriptedDecodeNode(token=letters, hooks={"/pd/reserve": fail})
    other = ScriptedDecodeNode(token=letters)
    async with routing([held.node], [sick, other]) as router:
        for rid in ("a1", "a2"):
            assert await router.answer(make(3, rid)) == WHOLE
        assert await router.answer(make(3, "cafe")) == WHOLE
        first, second = (call["kv_transfer_params"]["tilert_generation"] for call in held.calls)
        assert first >= 2**32
        decoded = [fields for path, fields in other.calls if path == "/pd/decode"]
        assert second == decoded[-1]["generation"] == 2
        await router.everything_is_back()
        assert held.node.aborted == 1
        assert sick.cancelled == ["cafe"]
        assert other.cancelled == []


async def test_a_request_that_has_to_stand_in_line_takes_prefill_back() -> None:
    """As where another router has the slot."""
    held = HeldOnce("cafe")
    in_line: list[int] = []

    async def refuse_once(fields: dict[str, Any]) -> Answer | None:
        if fields["rid"] != "cafe":
            return None
        if "generation" in fields:
            await held.asked.wait()
            return Answer(429, b'{"error":"busy","code":"slots_busy"}')
        in_line.append(len(held.calls))
        return None

    decode = ScriptedDecodeNode(token=letters, hooks={"/pd/reserve": refuse_once})
    async with routing(held.node, decode, queue_timeout=30) as router:
        assert await router.answer(make(3)) == WHOLE
        await router.everything_is_back()
        assert await router.answer(make(3, "cafe")) == WHOLE
        assert in_line == [1]
        assert len(held.calls) == 2
        await router.everything_is_back()
        assert held.node.aborted == 1
