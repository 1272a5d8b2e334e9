"""Engines that stand still, in the whole app: every wait has its limit and its own error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cases.asking import ByteApp, Said, ask, exchange
from tests.switched_limits import NO_LIMITS, SwitchedLimits
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate
from tilert_stream.time_limits import TimeLimits

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


async def stalled(script: Callable[[Gate], Script], *, code: str, begun: bool, stream: bool) -> str:
    """Ask an app whose engine stands at the gate; the text that came, all of it checked."""
    limits = SwitchedLimits(**{code.removesuffix("_timeout"): 0.02})
    with Gate() as gate:
        app = ByteApp(script(gate), time_limits=limits)
        asked = exchange(app, {"max_tokens": 2000}, stream=stream)
        async with app.lifespan():
            async with asked.running(gate):
                await gate.arrival()
                limits.count()
            limits.rest()
            assert app.service.ledger.counts == {}, "given back while the engine still stands"
            gate.open()
            assert await ask(app, {"max_tokens": 2}, stream=stream) == Said("ab", "length", 2)
        assert app.decode_engine.busy == {}
    assert b"[DONE]" not in asked.content
    assert b'"finish_reason":"' not in asked.content
    if begun and stream:
        assert (asked.status, asked.complete) == (200, False), "begun, and cut"
        assert asked.chunks[-1]["error"]["code"] == code
        return asked.text
    assert (asked.status, asked.complete) == (504, True)
    assert asked.json["error"]["code"] == code
    return ""


@both
async def test_dis_04_a_prompt_that_is_never_computed(stream: bool) -> None:
    await stalled(
        lambda gate: Script(before_chunk=gate.pass_through),
        code="prefill_timeout",
        begun=False,
        stream=stream,
    )


@both
async def test_dis_04_kv_that_never_comes(stream: bool) -> None:
    """The first token has left; the slot is back at the limit, and not 120 s later."""
    text = await stalled(
        lambda gate: Script(before_import=gate.pass_through),
        code="kv_timeout",
        begun=True,
        stream=stream,
    )
    assert text == ("a" if stream else "")


@both
async def test_err_06_three_tokens_and_then_nothing(stream: bool) -> None:
    def third(gate: Gate) -> Script:
        return Script(before_chain=lambda turn: gate.pass_through(turn) if turn == 2 else None)

    text = await stalled(third, code="inter_token_timeout", begun=True, stream=stream)
    assert text == ("abc" if stream else "")


@both
async def test_err_06_signs_of_life_are_no_tokens(stream: bool) -> None:
    """Chains that come to an end without a token, for ever."""
    limits = TimeLimits(**(NO_LIMITS | {"inter_token": 0.1}))
    app = ByteApp(Script(chain=lambda turn: int(turn < 2), chain_time=0.001), time_limits=limits)
    asked = exchange(app, {"max_tokens": 2000}, stream=stream)
    async with app.lifespan():
        async with asked.running():
            pass
        assert app.service.ledger.counts == {}
    assert b'"inter_token_timeout"' in asked.content
    assert app.decode_engine.busy == {}


@both
async def test_err_06_never_a_first_token(stream: bool) -> None:
    await stalled(
        lambda gate: Script(before_chunk=gate.pass_through),
        code="first_token_timeout",
        begun=False,
        stream=stream,
    )


@both
async def test_err_06_an_answer_that_takes_longer_than_allowed(stream: bool) -> None:
    limits = TimeLimits(**(NO_LIMITS | {"total": 0.05}))
    app = ByteApp(Script(chain_time=0.1), time_limits=limits)
    asked = exchange(app, {"max_tokens": 2000}, stream=stream)
    async with app.lifespan():
        async with asked.running():
            pass
        assert app.service.ledger.counts == {}
    assert b'"total_timeout"' in asked.content
    assert app.decode_engine.busy == {}
