"""The engine on the fake, in all four loops: what is emitted, counted and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.tilert.driving import (
    DRAWN,
    FAMILIES,
    GREEDY,
    Family,
    answer,
    begin,
    engine_on,
    expected,
)
from tilert_engine.layouts.mla_nsa_cache import ImportedKV
from tilert_engine.tilert.decode import TileRTDecode, TileRTSequence
from tilert_stream.abc import DecodeEngine
from tilert_stream.errors import ConfigError, EngineFault
from tilert_stream.events import Finished, Limits, Sampling
from tilert_stream.testing.tilert_fake import FakeGenerator, FakeModel

MTP = Family(chains=True, with_mtp=True)
PLAIN = Family(chains=True, with_mtp=False)
COUNTING = FakeModel(
    token=lambda index: 100 + index,
    drawn=lambda index: 500 + index,
    accepts=lambda step: 1 + step % 4,
)


def always_four(_step: int) -> int:
    return 4


families = pytest.mark.parametrize("family", FAMILIES, ids=str)


def test_the_engine_fits_its_contract() -> None:
    engine: DecodeEngine[TileRTSequence] = engine_on(COUNTING, MTP, window=100)[0]
    assert engine.slots == 1
    assert engine.max_seq_len == 97, "a draft of 4 may begin on the last row that is needed"


@families
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("max_tokens", [2, 3, 4, 5, 9, 34, 100])
def test_met_12_exactly_as_many_tokens_as_asked_for(
    family: Family, sampling: Sampling, max_tokens: int
) -> None:
    engine, fake = engine_on(COUNTING, family)
    limits = Limits(max_tokens)
    got = answer(engine, fake, limits, sampling)
    assert (got.ids, "length") == expected(COUNTING, limits, greedy=sampling is GREEDY)
    assert got.finished == Finished("length")
    assert got.account.get("overrun") == 0
    assert got.account.get("forwards") == fake.device.forwards


@families
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=20),
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.integers(2, 60),
    st.integers(0, 12),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
)
def test_whatever_the_model_says_and_accepts(
    family: Family,
    words: list[int],
    accepted: list[int],
    max_tokens: int,
    min_tokens: int,
    ar_steps: int,
    stops: bool,
    told: bool,
) -> None:
    model = FakeModel(
        token=lambda index: words[index % len(words)],
        accepts=lambda step: accepted[step % len(accepted)],
        last_prompt_token=words[0],
    )
    limits = Limits(max_tokens, min_tokens, eos_ids=frozenset({6} if stops else ()))
    engine, fake = engine_on(model, family, ar_steps=ar_steps)
    got = answer(engine, fake, limits, told=told)
    assert (got.ids, got.finished.reason) == expected(model, limits)
    assert got.account.get("forwards") == fake.device.forwards
    if not stops:
        assert got.account.get("overrun") == 0


@families
@pytest.mark.parametrize("place", range(1, 20))
def test_a_stop_token_at_every_position(family: Family, place: int) -> None:
    stop = COUNTING.token(place)
    for limits in (
        Limits(50, stop_ids=frozenset({stop})),
        Limits(50, eos_ids=frozenset({stop})),
    ):
        engine, fake = engine_on(COUNTING, family, ar_steps=3)
        got = answer(engine, fake, limits)
        assert got.ids == [COUNTING.token(index) for index in range(1, place + 1)]
        assert got.finished == Finished("stop", stop_reason=stop if limits.stop_ids else None)
        overrun = got.account.get("overrun", 0)
        assert 0 <= overrun <= 2, "the rest of the chain, and no further one"
        if not family.chains:
            assert overrun == 0, "single steps end where they stop"


def test_a_chain_is_as_long_as_the_budget_can_need() -> None:
    engine, fake = engine_on(COUNTING, PLAIN)
    assert answer(engine, fake, Limits(20)).sizes == [8, 8, 3]
    every = replace(COUNTING, accepts=always_four)
    engine, fake = engine_on(every, MTP)
    # The first step after prefill has no draft of the device's own: it accepts one token.
    assert answer(engine, fake, Limits(40)).sizes == [29, 10]


def test_mtp_counts_what_its_steps_accepted() -> None:
    model = replace(COUNTING, accepts=always_four)
    engine, fake = engine_on(model, MTP)
    got = answer(engine, fake, Limits(10))
    assert got.account == {
        "finish_reason": "length",
        "forwards": 4,
        "overrun": 0,
        "mtp_verify_calls": 3,
        "mtp_accept_mean": 3.0,
    }


def test_without_mtp_nothing_is_said_of_it() -> None:
    engine, fake = engine_on(COUNTING, PLAIN)
    assert answer(engine, fake, Limits(10)).account == {
        "finish_reason": "length",
        "forwards": 9,
        "overrun": 0,
    }


@families
def test_an_answer_that_begins_with_the_last_prompt_token(family: Family) -> None:
    """The opening step's filled draft is then right, and accepted further than it should be."""
    model = FakeModel(token=lambda index: 9 if index < 3 else 100 + index, last_prompt_token=9)
    engine, fake = engine_on(model, family)
    assert answer(engine, fake, Limits(12)).ids == expected(model, Limits(12))[0]


def test_without_the_last_prompt_token_there_is_no_opening_step() -> None:
    engine, fake = engine_on(COUNTING, MTP)
    got = answer(engine, fake, Limits(2), told=False)
    assert (got.ids, fake.device.forwards) == ([101], 1)


@families
@pytest.mark.parametrize("tokens", [1, 2, 64, 200])
def test_the_last_row_of_the_window_is_used_and_no_further_one(family: Family, tokens: int) -> None:
    engine, fake = engine_on(COUNTING, family, window=220)
    limits = Limits(engine.max_seq_len - tokens)
    got = answer(engine, fake, limits, tokens=tokens)
    assert len(got.ids) + 1 == limits.max_tokens


@families
def test_kv_05_a_request_past_the_window_is_refused(family: Family) -> None:
    engine, fake = engine_on(COUNTING, family, window=64, max_seq_len=32)
    assert engine.max_seq_len == 32
    with pytest.raises(EngineFault, match="the prompt's 30 tokens and max_tokens 3 are more than"):
        begin(engine, fake, Limits(3), tokens=30)
    assert answer(engine, fake, Limits(2), tokens=30).ids == [101]


def test_a_window_longer_than_the_caches_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_seq_len is 65; TileRT's caches have room for 64"):
        engine_on(COUNTING, MTP, window=64, max_seq_len=65)


@families
def test_pd_21_nothing_of_a_request_stays(family: Family) -> None:
    engine, fake = engine_on(COUNTING, family)
    stop = frozenset({COUNTING.token(4)})
    ignoring = answer(engine, fake, Limits(9))
    stopping = answer(engine, fake, Limits(9, eos_ids=stop))
    drawn = answer(engine, fake, Limits(9, eos_ids=stop), DRAWN)
    again = answer(engine, fake, Limits(9, eos_ids=stop))
    assert ignoring.finished == drawn.finished == Finished("length")
    assert drawn.ids == expected(COUNTING, Limits(9), greedy=False)[0]
    assert stopping == again
    assert again.ids == ignoring.ids[:4]


@families
@pytest.mark.parametrize("chains", [0, 1, 2])
def test_a_request_given_up_between_chains_leaves_nothing(family: Family, chains: int) -> None:
    engine, fake = engine_on(COUNTING, family, ar_steps=2)
    sequence = begin(engine, fake, Limits(40))
    for _ in range(chains):
        assert engine.advance(sequence).finished is None
    before = fake.device.forwards
    engine.close(sequence)
    assert fake.device.sequence is None
    assert fake.device.forwards == before
    assert "finish_reason" not in sequence.ledger.account()
    assert answer(engine, fake, Limits(6)).ids == expected(COUNTING, Limits(6))[0]


def test_a_slot_is_opened_once_and_closed_once() -> None:
    engine, fake = engine_on(COUNTING, MTP)
    with pytest.raises(RuntimeError, match="slot 1 does not exist"):
        engine.open(1, fake.kv(tokens=3), 100, Limits(3), GREEDY)
    sequence = begin(engine, fake, Limits(2))
    with pytest.raises(RuntimeError, match="slot 0 is busy"):
        begin(engine, fake, Limits(3))
    engine.advance(sequence)
    with pytest.raises(RuntimeError, match="this sequence has finished"):
        engine.advance(sequence)
    engine.close(sequence)
    for call in (engine.advance, engine.close):
        with pytest.raises(RuntimeError, match="this sequence is closed"):
            call(sequence)


@pytest.mark.parametrize("chains", [True, False])
def test_without_mtp_a_draft_layer_that_came_along_is_left_out(chains: bool) -> None:
    engine, fake = engine_on(COUNTING, Family(chains=chains, with_mtp=False))
    sequence = engine.open(0, fake.kv(tokens=5, draft=True), 100, Limits(3), GREEDY)
    assert engine.advance(sequence).batch.ids[0] == 101


@families
def test_a_device_that_dies_while_opening_or_later_says_so(family: Family) -> None:
    engine, fake = engine_on(replace(COUNTING, dies_at=1), family)
    with pytest.raises(RuntimeError, match="CUDA error"):
        answer(engine, fake, Limits(20))
    with pytest.raises(RuntimeError, match="slot 0 is busy"):
        begin(engine, fake, Limits(2))


def cache(
    layers: int = 3,
    tokens: int = 3,
    *,
    model: str = "fake",
    latent: int = 512,
    rope_tokens: int = 3,
    dtype: torch.dtype = torch.bfloat16,
) -> ImportedKV:
    return ImportedKV(
        model,
        torch.zeros(layers, tokens, 128, dtype=dtype),
        torch.zeros(layers, tokens, latent, dtype=dtype),
        torch.zeros(layers, rope_tokens, 64, dtype=dtype),
    )


@pytest.mark.parametrize(
    ("kv", "message"),
    [
        (b"", "the KV cache is a bytes, TileRT takes what the mla_nsa layout unpacks"),
        (cache(2), "the KV cache has 2 layers, fake has 3; give both nodes the draft layer"),
        (cache(4), "the KV cache has 4 layers, fake has 3"),
        (cache(tokens=0), "the KV cache has 0 tokens"),
        (cache(model="glm5"), "model is glm5, this engine's is fake"),
        (cache(latent=576), r"shape of kv is \(3, 3, 576\), this engine's is \(3, 3, 512\)"),
        (cache(rope_tokens=4), r"shape of pe is \(3, 4, 64\), this engine's is \(3, 3, 64\)"),
        (cache(dtype=torch.float32), r"dtype of ki is torch\.float32, .* is torch\.bfloat16"),
    ],
)
def test_kv_06_a_cache_that_does_not_fit_is_refused(kv: object, message: str) -> None:
    engine, fake = engine_on(COUNTING, MTP)
    with pytest.raises(EngineFault, match=message):
        engine.open(0, kv, 100, Limits(3), GREEDY)
    assert answer(engine, fake, Limits(3)).ids == [101, 102]


def test_what_the_layout_unpacks_is_taken_as_it_is() -> None:
    engine, fake = engine_on(COUNTING, MTP)
    sequence = engine.open(0, fake.kv(tokens=5).cache, 100, Limits(2), GREEDY)
    assert engine.advance(sequence).batch.ids == (101,)


def test_the_models_own_stop_tokens() -> None:
    fake = FakeGenerator(COUNTING, with_mtp=True, stop_token_ids=(3, 4))
    engine = TileRTDecode(fake, model=fake.model, with_mtp=True)
    assert engine.stop_ids == {3, 4}
    fake.stop_token_ids = set()
    setattr(fake, "eos_id", 5)  # noqa: B010 - as the V3.2 generator has it
    assert TileRTDecode(fake, model=fake.model, with_mtp=True).stop_ids == {5}
    setattr(fake, "eos_id", None)  # noqa: B010 - as above
    assert TileRTDecode(fake, model=fake.model, with_mtp=True).stop_ids == frozenset()


class OtherLayer:
    """A layer of a version that this engine does not know."""

    max_seq_len = 64

    def reset_sequence(self) -> None:
        raise AssertionError("nothing was begun")


@families
def test_a_layer_that_can_do_neither_is_refused(family: Family) -> None:
    fake = FakeGenerator(COUNTING, with_mtp=family.with_mtp, chains=family.chains)
    setattr(fake, "decode_layer", OtherLayer())  # noqa: B010 - of another type than the fake's
    with pytest.raises(ConfigError, match="OtherLayer has neither show_hands nor forward"):
        TileRTDecode(fake, model=fake.model, with_mtp=family.with_mtp)


def test_caches_of_unknown_length_are_refused() -> None:
    fake = FakeGenerator(COUNTING, with_mtp=True)
    del fake.decode_layer.max_seq_len
    with pytest.raises(ConfigError, match="FakeGenerator does not say how long its caches are"):
        TileRTDecode(fake, model=fake.model, with_mtp=True)
