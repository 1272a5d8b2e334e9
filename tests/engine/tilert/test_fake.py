"""The fake refuses what the device would have answered with nonsense."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from tilert_stream.testing.tilert_device import FakeChainLayer, FakeStepLayer
from tilert_stream.testing.tilert_fake import FakeGenerator, FakeModel, Misuse

MODEL = FakeModel(token=lambda index: 100 + index)


def chains(*, with_mtp: bool = True, tokens: int = 5) -> tuple[FakeGenerator, FakeChainLayer]:
    fake = FakeGenerator(MODEL, with_mtp=with_mtp, window=16)
    layer = fake.decode_layer
    assert isinstance(layer, FakeChainLayer)
    fake.inject_cache(list(fake.kv(tokens=tokens).cache.layers()))
    fake.set_cur_pos(tokens - 1)
    return fake, layer


def steps(*, with_mtp: bool) -> tuple[FakeGenerator, FakeStepLayer]:
    fake = FakeGenerator(MODEL, with_mtp=with_mtp, chains=False)
    layer = fake.decode_layer
    assert isinstance(layer, FakeStepLayer)
    fake.inject_cache(list(fake.kv(tokens=5).cache.layers()))
    fake.set_cur_pos(4)
    return fake, layer


def draft(token: int, length: int = 4, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full((1, length), token, dtype=dtype)


def test_a_chain_needs_its_mode() -> None:
    _, layer = chains()
    with pytest.raises(Misuse, match="a step of mtp, and the device is in mode None"):
        layer.show_hands(draft(9), 1)
    layer.set_prefill_valid_tokens(4)
    with pytest.raises(Misuse, match="in mode prefill"):
        layer.show_hands(draft(9), 1)
    layer.set_prefill_valid_tokens(0)
    with pytest.raises(Misuse, match="a step of plain, and the device is in mode mtp"):
        layer.show_hands_no_mtp(torch.tensor([100], dtype=torch.int32), 1)
    layer.set_prefill_valid_tokens(0, with_mtp=False)
    with pytest.raises(Misuse, match="a step of mtp, and the device is in mode plain"):
        layer.show_hands(draft(9), 1)


def test_a_mode_needs_a_position_and_its_weights() -> None:
    fake, layer = chains(with_mtp=False)
    with pytest.raises(Misuse, match="MTP is selected, and the weights were loaded without"):
        layer.set_prefill_valid_tokens(0, with_mtp=True)
    layer.reset_sequence()
    with pytest.raises(Misuse, match="no cache has been injected"):
        layer.set_prefill_valid_tokens(0)
    fake.inject_cache(list(fake.kv(tokens=5).cache.layers()))
    with pytest.raises(Misuse, match="a mode is selected before set_cur_pos"):
        layer.set_prefill_valid_tokens(0)


def test_buffers_exist_after_a_chain_of_their_mode() -> None:
    _, layer = chains()
    layer.set_prefill_valid_tokens(0)
    for read in (layer.ar_accepted_tokens, layer.ar_num_accepted):
        with pytest.raises(Misuse, match="no chain of mtp has run"):
            read()
    with pytest.raises(Misuse, match="no step has made a draft"):
        layer.get_next_draft_tokens()
    layer.show_hands(draft(9), 1)
    assert layer.ar_accepted_tokens()[0, :2].tolist() == [1, 100]  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
    assert layer.ar_num_accepted()[0, :2].tolist() == [1, 1]  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
    with pytest.raises(Misuse, match="no chain of plain has run"):
        layer.ar_accepted_tokens_no_mtp()
    layer.reset_sequence()
    with pytest.raises(Misuse, match="no chain of mtp has run"):
        layer.ar_accepted_tokens()


def test_a_step_is_fed_with_what_stands_at_its_position() -> None:
    fake, layer = chains()
    layer.set_prefill_valid_tokens(0)
    with pytest.raises(Misuse, match="fed with 100 at position 4, where 9 stands"):
        layer.show_hands(draft(100), 1)
    fake.set_cur_pos(5)
    with pytest.raises(Misuse, match="fed with 9 at position 5, where 100 stands"):
        layer.show_hands(draft(9), 1)


@pytest.mark.parametrize("bad", [draft(9, 3), draft(9, dtype=torch.int64), draft(9)[0]])
def test_a_draft_has_its_shape_and_type(bad: torch.Tensor) -> None:
    _, layer = chains()
    layer.set_prefill_valid_tokens(0)
    with pytest.raises(Misuse, match=r"not int32 \(1, 4\)"):
        layer.show_hands(bad, 1)


def test_the_live_draft_is_not_fed_back() -> None:
    _, layer = chains()
    layer.set_prefill_valid_tokens(0)
    layer.show_hands(draft(9), 1)
    with pytest.raises(Misuse, match="it needs a copy"):
        layer.show_hands(layer.get_next_draft_tokens().reshape(1, 4), 1)


@pytest.mark.parametrize("count", [0, 1025])
def test_a_chain_has_1_to_1024_steps(count: int) -> None:
    _, layer = chains()
    layer.set_prefill_valid_tokens(0)
    with pytest.raises(Misuse, match=f"a chain of {count} steps"):
        layer.show_hands(draft(9), count)


def test_no_row_beyond_the_caches() -> None:
    _, layer = chains(tokens=13)
    layer.set_prefill_valid_tokens(0)
    layer.show_hands(draft(9), 1)
    with pytest.raises(Misuse, match="rows 13 to 16 of a cache of 16"):
        layer.show_hands(draft(100), 1)


def test_one_sequence_at_a_time_and_its_sampling_stays() -> None:
    fake, layer = chains()
    layers = list(fake.kv(tokens=5).cache.layers())
    with pytest.raises(Misuse, match="over a sequence that was not reset"):
        fake.inject_cache(layers)
    layer.set_prefill_valid_tokens(0)
    layer.show_hands(draft(9), 1)
    with pytest.raises(Misuse, match="sampling changes in the middle"):
        fake.update_sampling_params(temperature=1.0, top_p=1.0, top_k=1, use_topp=False)
    layer.reset_sequence()
    with pytest.raises(Misuse, match="1 layers at 0, not 3 at 0"):
        fake.inject_cache(layers[:1])


def test_single_steps_have_the_same_rules() -> None:
    _, layer = steps(with_mtp=True)
    with pytest.raises(Misuse, match="a step of mtp, and the device is in mode None"):
        layer.forward(draft(9))
    with pytest.raises(Misuse, match="no step has accepted anything"):
        layer.get_num_accepted()
    _, layer = steps(with_mtp=False)
    with pytest.raises(Misuse, match="MTP is selected, and the weights were loaded without"):
        layer.set_prefill_valid_tokens(0)
    with pytest.raises(Misuse, match=r"a token of shape \(1,\), not a scalar"):
        layer.forward(torch.tensor([100]))


def on_a_thread(call: Callable[[], object]) -> BaseException | None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except Misuse as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_the_device_has_one_owner() -> None:
    _, layer = chains()
    assert "two threads" in str(on_a_thread(layer.reset_sequence))
