"""``--model tiny-glm5``: in one process, and divided between nodes."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
import torch

from tests.engine.glm.asking import Answer, decode, prefill
from tests.engine.glm.make_greedy import QUESTIONS
from tests.pd.cluster import Cluster
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.models import describe_tiny_glm5
from tilert_stream.config import RouterConfig, ServeConfig
from tilert_stream.errors import ConfigError
from tilert_stream.events import Limits
from tilert_stream.serve import router
from tilert_stream.serve.front import Front, load_front
from tilert_stream.serve.models import Model, load_model
from tilert_transports.control.layout import differences
from tilert_transports.nixl_binding import installed
from tilert_transports.registry import load

CONFIG = ServeConfig(model="tiny-glm5", max_seq_len=256, threads=1)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
needs_nixl = pytest.mark.skipif(not installed(), reason="no NIXL wheel")
for each in ("shm", "tcp", *(["nixl"] if installed() else [])):
    load(each)  # before any event loop runs: importing reads files
HELLO = "Hello! Ask me what a word means, and I will explain it."


@pytest.fixture(scope="module")
def models() -> tuple[Model, Model]:
    return load_model(CONFIG), load_model(CONFIG, slots=2)


@pytest.fixture(scope="module")
def front() -> Front:
    return load_front(RouterConfig(model="tiny-glm5"))


def test_the_router_sees_the_same_front(models: tuple[Model, Model], front: Front) -> None:
    card = models[0].front.card
    assert front.card.names == card.names == ("tiny-glm5",)
    assert front.card.eos_ids == card.eos_ids
    assert front.card.vocab_size == card.vocab_size == 2048
    assert front.card.default_sampling == card.default_sampling
    assert front.card.default_sampling.temperature == 0.3
    assert (front.card.max_seq_len, card.max_seq_len) == (2048, 256)


@pytest.fixture
def router_front(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cluster's router takes: it is made inside the loop, where no file may be read."""

    def loaded(_config: RouterConfig) -> Front:
        return front

    monkeypatch.setattr(router, "load_front", loaded)


def variant(with_mtp: bool, ar_steps: int) -> Model:
    return load_model(replace(CONFIG, with_mtp=with_mtp), slots=1, ar_steps=ar_steps)


@pytest.fixture
def told(answers: list[Answer]) -> list[tuple[Answer, str]]:
    """What undivided engines say to each question, and its text."""
    tokenizer = describe_tiny_glm5().tokenizer
    fp8 = [answer for answer in answers if answer.cache][: len(QUESTIONS)]
    return [(answer, tokenizer.decode(answer.ids)) for answer in fp8]


@pytest.mark.usefixtures("router_front")
@pytest.mark.parametrize(
    ("transport", "with_mtp", "ar_steps"),
    [
        ("memory", True, 8),
        ("memory", True, 64),
        ("memory", False, 1),
        ("memory", False, 8),
        ("shm", True, 1),
        ("tcp", True, 1),
        pytest.param("nixl", True, 1, marks=needs_nixl),
    ],
)
async def test_the_stored_answers_divided_between_nodes(
    models: tuple[Model, Model],
    told: list[tuple[Answer, str]],
    transport: str,
    with_mtp: bool,
    ar_steps: int,
) -> None:
    decoding = await anyio.to_thread.run_sync(variant, with_mtp, ar_steps)
    cluster = Cluster(prefill_model=models[0], decode_models=[decoding], transport=transport)
    async with cluster.running():
        for question, (expected, text) in zip(QUESTIONS, told, strict=True):
            assert min(expected.margins) > 1e-3, "a near-tie might go either way"
            answer = await cluster.ask(
                messages=[{"role": "user", "content": question}],
                max_tokens=len(expected.ids),
                ignore_eos=True,
                temperature=0,
            )
            assert (answer.status, answer.finish_reason) == (200, "length"), answer.message
            assert answer.text == text
        await cluster.idle()


def on_a_device(with_mtp: bool) -> Model:
    model = load_model(replace(CONFIG, device="cuda", with_mtp=with_mtp), slots=1, ar_steps=8)
    assert model.decode.slots == 1  # made here: it records its steps, which takes seconds
    return model


@needs_cuda
@pytest.mark.usefixtures("router_front")
@pytest.mark.parametrize("with_mtp", [True, False], ids=["mtp", "plain"])
async def test_a_device_decodes_what_a_cpu_has_prefilled(
    models: tuple[Model, Model], told: list[tuple[Answer, str]], with_mtp: bool
) -> None:
    decoding = await anyio.to_thread.run_sync(on_a_device, with_mtp)
    assert isinstance(decoding.layout, MlaNsaLayout)
    assert decoding.layout.device.startswith("cuda")
    cluster = Cluster(prefill_model=models[0], decode_models=[decoding], transport="shm")
    async with cluster.running():
        for question, (expected, text) in zip(QUESTIONS, told, strict=True):
            answer = await cluster.ask(
                messages=[{"role": "user", "content": question}],
                max_tokens=len(expected.ids),
                ignore_eos=True,
                temperature=0,
            )
            assert (answer.status, answer.finish_reason) == (200, "length"), answer.message
            assert answer.text == text
        await cluster.idle()


@pytest.mark.usefixtures("router_front")
async def test_a_stop_token_ends_a_divided_answer(models: tuple[Model, Model]) -> None:
    cluster = Cluster(prefill_model=models[0], decode_models=[models[1]], transport="memory")
    asked = [{"role": "user", "content": "Hello"}]
    async with cluster.running():
        answer = await cluster.ask(
            messages=asked, max_tokens=60, temperature=0, stream_options={"include_usage": True}
        )
    assert not answer.message
    assert (answer.status, answer.text, answer.finish_reason) == (200, HELLO, "stop")
    assert answer.whole


def test_without_mtp_the_answer_is_the_same(answers: list[Answer]) -> None:
    plain = load_model(replace(CONFIG, with_mtp=False))
    answer = next(answer for answer in answers if answer.cache)
    limits = Limits(len(answer.ids))
    output = prefill(plain.prefill, answer.prompt, limits)
    ids, finished = decode(plain.decode, output.kv, answer.ids[0], limits)
    answer.agrees(ids)
    assert finished.account is not None
    assert finished.account["forwards"] == len(ids) - 1
    assert "mtp_verify_calls" not in finished.account


def test_both_ends_describe_what_they_cache(models: tuple[Model, Model]) -> None:
    layout = models[0].layout
    other = load_model(replace(CONFIG, kv_cache_dtype="bf16")).layout
    assert [
        difference.field for difference in differences(layout.describe(), other.describe())
    ] == [
        "version",
        "dtype",
    ]
    assert layout.describe()["layers"] == 5


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (replace(CONFIG, dtype="bfloat16"), "dtype is 'bfloat16'"),
        (replace(CONFIG, kv_cache_dtype="int4"), "int4"),
        (replace(CONFIG, max_seq_len=4096), "4096"),
        (replace(CONFIG, device="gpu"), "device is 'gpu'"),
        (replace(CONFIG, device="cuda:99"), "CUDA devices"),
    ],
)
def test_options_it_cannot_follow(config: ServeConfig, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_model(config)


def test_senders(models: tuple[Model, Model]) -> None:
    assert models[0].layout.sender_ranks == (0,)
    with pytest.raises(ConfigError, match="rank 0 alone"):
        load_model(CONFIG, senders=2)
