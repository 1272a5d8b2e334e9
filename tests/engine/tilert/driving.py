"""A request through the engine on the fake, and what should come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilert_engine.tilert.decode import TileRTDecode, TileRTSequence
from tilert_stream.events import Finished, Limits, Sampling
from tilert_stream.testing.tilert_fake import TOKEN_OUT, FakeGenerator, FakeModel

if TYPE_CHECKING:
    from tilert_engine.accounting import Account

GREEDY = Sampling(temperature=0)
DRAWN = Sampling(temperature=0.7, top_p=0.9, top_k=40)


@dataclass(frozen=True)
class Family:
    """One of the four loops."""

    chains: bool
    with_mtp: bool

    def __str__(self) -> str:
        return f"{'chains' if self.chains else 'steps'}-{'mtp' if self.with_mtp else 'plain'}"


FAMILIES = [Family(chains, with_mtp) for chains in (True, False) for with_mtp in (True, False)]


@dataclass
class Answer:
    ids: list[int]
    finished: Finished
    sizes: list[int]
    account: Account


def engine_on(
    model: FakeModel,
    family: Family,
    *,
    ar_steps: int = 8,
    window: int = 256,
    max_seq_len: int | None = None,
) -> tuple[TileRTDecode, FakeGenerator]:
    fake = FakeGenerator(model, with_mtp=family.with_mtp, chains=family.chains, window=window)
    engine = TileRTDecode(
        fake,
        model=fake.model,
        with_mtp=family.with_mtp,
        max_seq_len=max_seq_len,
        ar_steps=ar_steps,
        token_out=TOKEN_OUT,
    )
    return engine, fake


def begin(
    engine: TileRTDecode,
    fake: FakeGenerator,
    limits: Limits,
    sampling: Sampling = GREEDY,
    *,
    tokens: int = 5,
    told: bool = True,
) -> TileRTSequence:
    first = fake.device.model.token(0)
    return engine.open(0, fake.kv(tokens=tokens, told=told), first, limits, sampling)


def answer(
    engine: TileRTDecode,
    fake: FakeGenerator,
    limits: Limits,
    sampling: Sampling = GREEDY,
    *,
    tokens: int = 5,
    told: bool = True,
) -> Answer:
    sequence = begin(engine, fake, limits, sampling, tokens=tokens, told=told)
    ids: list[int] = []
    sizes: list[int] = []
    finished: Finished | None = None
    while finished is None:
        harvest = engine.advance(sequence)
        finished = harvest.finished
        ids += harvest.batch.ids
        sizes.append(len(harvest.batch.ids))
        stopped = finished is not None and finished.reason == "stop"
        assert harvest.batch.ends_with_stop == stopped
    engine.close(sequence)
    assert fake.device.sequence is None, "reset on every exit"
    return Answer(ids, finished, sizes, sequence.ledger.account())


def expected(model: FakeModel, limits: Limits, *, greedy: bool = True) -> tuple[list[int], str]:
    """The model's answer after prefill's token, one token after the other."""
    say = model.token if greedy or model.drawn is None else model.drawn
    ids: list[int] = []
    while len(ids) + 1 < limits.max_tokens:
        token = say(len(ids) + 1)
        ids.append(token)
        ends = token in limits.eos_ids | limits.stop_ids
        if ends and len(ids) + 1 >= limits.min_tokens:
            return ids, "stop"
    return ids, "length"
