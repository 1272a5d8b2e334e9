from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_engine.scripted import Script, ScriptedDecode, ScriptedKV, ScriptedPrefill, echo
from tilert_stream.errors import EngineFault
from tilert_stream.events import Finished, Limits, Sampling, TokenBatch

PROMPT = (5, 6, 7)


def generate(script: Script, limits: Limits) -> tuple[list[int], Finished, list[int]]:
    """Decode's tokens, the end, and the size of each harvest."""
    engine = ScriptedDecode(script)
    first = script.token(PROMPT, 0)
    sequence = engine.open(0, ScriptedKV(PROMPT), first, limits, Sampling())
    ids: list[int] = []
    sizes: list[int] = []
    while True:
        harvest = engine.advance(sequence)
        ids += harvest.batch.ids
        sizes.append(len(harvest.batch.ids))
        if harvest.finished is not None:
            stopped = harvest.finished.reason == "stop"
            assert harvest.batch.ends_with_stop == stopped
            engine.close(sequence)
            assert engine.busy == {}
            return ids, harvest.finished, sizes


@given(st.integers(2, 60), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_the_budget_is_kept_whatever_the_chains(max_tokens: int, chains: list[int]) -> None:
    script = Script(chain=lambda turn: chains[turn % len(chains)])
    ids, end, sizes = generate(script, Limits(max_tokens))
    assert ids == [echo(PROMPT, index) for index in range(1, max_tokens)]
    assert end == Finished("length")
    assert all(size <= chains[turn % len(chains)] for turn, size in enumerate(sizes))


def test_a_stop_token_ends_a_chain_in_the_middle() -> None:
    script = Script(chain=lambda _turn: 4)
    ids, end, _ = generate(script, Limits(50, eos_ids=frozenset({7})))
    assert (ids, end) == ([6, 7], Finished("stop"))
    ids, end, _ = generate(script, Limits(50, stop_ids=frozenset({7})))
    assert (ids, end) == ([6, 7], Finished("stop", stop_reason=7))


def test_a_stop_token_before_the_minimum_does_not() -> None:
    ids, end, _ = generate(Script(), Limits(50, min_tokens=4, eos_ids=frozenset({7})))
    assert (ids, end) == ([6, 7, 5, 6, 7], Finished("stop"))


def test_prefill_and_decode_agree_without_talking() -> None:
    script = Script()
    prefill = ScriptedPrefill(script)
    result = prefill.advance(prefill.open(PROMPT, Limits(3), Sampling()))
    assert result is not None
    decode = ScriptedDecode(script)
    sequence = decode.open(0, result.kv, result.first.ids[0], Limits(3), Sampling())
    assert decode.advance(sequence).batch == TokenBatch((6,))


def test_hooks_get_their_numbers() -> None:
    seen: list[tuple[str, int]] = []
    script = Script(
        chunks=2,
        before_chunk=lambda number: seen.append(("chunk", number)),
        before_import=lambda number: seen.append(("import", number)),
        before_chain=lambda number: seen.append(("chain", number)),
    )
    prefill = ScriptedPrefill(script)
    run = prefill.open(PROMPT, Limits(3), Sampling())
    assert prefill.advance(run) is None
    assert prefill.advance(run) is not None
    decode = ScriptedDecode(script)
    sequence = decode.open(3, ScriptedKV(PROMPT), 5, Limits(3), Sampling())
    decode.advance(sequence)
    decode.advance(sequence)
    assert seen == [("chunk", 0), ("chunk", 1), ("import", 3), ("chain", 0), ("chain", 1)]


@pytest.mark.parametrize("turn", [0, 1])
def test_a_hook_that_fails_leaves_the_slot_to_close(turn: int) -> None:
    def fail(number: int) -> None:
        if number == turn:
            raise EngineFault("a bad page")

    engine = ScriptedDecode(Script(before_chain=fail))
    sequence = engine.open(0, ScriptedKV(PROMPT), 5, Limits(9), Sampling())
    for _ in range(turn):
        engine.advance(sequence)
    with pytest.raises(EngineFault, match="a bad page"):
        engine.advance(sequence)
    engine.close(sequence)
    assert engine.busy == {}


def test_misuse_is_loud() -> None:
    engine = ScriptedDecode(Script())
    with pytest.raises(EngineFault, match="takes ScriptedKV, not str"):
        engine.open(0, "no cache", 5, Limits(9), Sampling())
    with pytest.raises(EngineFault, match="first token 9 is not the script's"):
        engine.open(0, ScriptedKV(PROMPT), 9, Limits(9), Sampling())
    assert engine.busy == {}
    sequence = engine.open(0, ScriptedKV(PROMPT), 5, Limits(9), Sampling())
    with pytest.raises(RuntimeError, match="slot 0 is opened twice"):
        engine.open(0, ScriptedKV(PROMPT), 5, Limits(9), Sampling())
    engine.close(sequence)
    with pytest.raises(RuntimeError, match="slot 0 is closed twice"):
        engine.close(sequence)
