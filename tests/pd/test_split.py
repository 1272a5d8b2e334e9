"""Router, prefill and decode as separate nodes say what one process says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from tests.engine.torch.tiny import Tiny, write_huggingface
from tests.pd.cluster import LONGEST, Answer, Cluster
from tilert_engine.layouts.abc import Description
from tilert_engine.layouts.gqa import GqaLayout
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.scripted import Script
from tilert_engine.torch import TorchDecode, TorchPrefill, load
from tilert_stream.config import RouterConfig
from tilert_stream.errors import ConfigError, EngineFault
from tilert_stream.events import Limits, Sampling
from tilert_stream.serve.front import byte_front
from tilert_stream.testing import Gate

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
USAGE = {"stream_options": {"include_usage": True}}


def fields(stream: bool, **given: Any) -> dict[str, Any]:
    return {"stream": stream, **(USAGE if stream else {}), **given}


@both
@pytest.mark.parametrize("transport", ["memory", "shm", "tcp", "auto"])
async def test_an_answer_over_every_transport(transport: str, stream: bool) -> None:
    async with Cluster(transport=transport).running() as cluster:
        for length in (1, 2, 40):
            text = ("abc" * 20)[:length]
            assert await cluster.ask(**fields(stream, max_tokens=length)) == Answer(
                200, text, "length", length, None, True
            )
        assert cluster.held == {}


@both
async def test_a_stop_token_is_counted_and_has_no_text(stream: bool) -> None:
    """As in one process: whether it is the first token, in the middle, or ignored."""
    async with Cluster().running() as cluster:
        for stop, text, count in ((97, "", 1), (99, "ab", 3)):
            assert await cluster.ask(**fields(stream, max_tokens=9, stop_token_ids=[stop])) == (
                Answer(200, text, "stop", count, None, True)
            )
        answer = await cluster.ask(
            **fields(stream, max_tokens=5, stop_token_ids=[97], min_tokens=3)
        )
        assert answer == Answer(200, "abc", "stop", 4, None, True)
        assert await cluster.ask(**fields(stream, max_tokens=9, stop=["ca"])) == Answer(
            200, "ab", "stop", 4, None, True
        )
        assert cluster.held == {}


@both
async def test_a_torch_model_split_says_what_it_says_undivided(
    tmp_path: Path, stream: bool
) -> None:
    checkpoint = load(
        write_huggingface(Tiny(), tmp_path / "tiny"),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )

    class Model:
        def __init__(self) -> None:
            self.front = byte_front(RouterConfig(model="bytes"), 64)
            self.prefill = TorchPrefill(checkpoint, max_seq_len=64)
            self.decode = TorchDecode(checkpoint, slots=2, max_seq_len=64)
            self.layout = GqaLayout.of(checkpoint, dtype="float32", max_seq_len=64)

    prompt = tuple(b"abc")
    limits = Limits(30)
    greedy = Sampling(temperature=0)
    whole = Model()
    run = whole.prefill.open(prompt, limits, greedy)
    while (output := whole.prefill.advance(run)) is None:
        pass
    expected = list(output.first.ids)
    sequence = whole.decode.open(0, output.kv, expected[0], limits, greedy)
    finished = None
    while finished is None:
        harvest = whole.decode.advance(sequence)
        expected += harvest.batch.ids
        finished = harvest.finished
    text = bytes(token for token in expected if token < 256).decode("utf-8", "replace")
    cluster = Cluster(prefill_model=Model(), decode_models=[Model()])
    async with cluster.running():
        answer = await cluster.ask(**fields(stream, max_tokens=30, temperature=0, ignore_eos=True))
    assert (answer.status, answer.completion_tokens) == (200, 30)
    assert [ord(c) for c in answer.text if ord(c) < 128] == [ord(c) for c in text if ord(c) < 128]


@both
async def test_dis_14_without_a_queue_every_slot_taken_is_a_429(stream: bool) -> None:
    """The second request is told before anything is prefilled for it."""
    prefilled: list[int] = []
    with Gate() as gate:
        cluster = Cluster(
            prefill=Script(before_chunk=prefilled.append),
            decode=[Script(before_chain=gate.pass_through)],
            slots=1,
            router_options={"queue_timeout": 0.0},
        )
        answers: list[Answer] = []
        async with cluster.running(), anyio.create_task_group() as tasks:

            async def first() -> None:
                answers.append(await cluster.ask(**fields(stream, max_tokens=3)))

            tasks.start_soon(first)
            await gate.arrival()
            async with cluster.request(**fields(stream, max_tokens=3)) as refused:
                assert refused.status == 429
                assert refused.header(b"retry-after") == "1"
            assert len(prefilled) == 1
            gate.open()
    assert answers == [Answer(200, "abc", "length", 3, None, True)]


@both
@pytest.mark.parametrize("place", ["before_chunk", "before_import", "before_chain"])
async def test_a_client_that_leaves_is_forgotten_everywhere(place: str, stream: bool) -> None:
    with Gate() as gate:
        script = {
            "before_chunk": Script(before_chunk=gate.pass_through),
            "before_import": Script(before_import=gate.pass_through),
            "before_chain": Script(before_chain=gate.pass_through),
        }[place]
        cluster = Cluster(prefill=script, decode=[script], slots=1)
        async with cluster.running():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_of, cluster, fields(stream, max_tokens=30))
                await gate.arrival()
                tasks.cancel_scope.cancel()
            gate.open()
            await cluster.idle()
            assert await cluster.ask(**fields(stream, max_tokens=2)) == Answer(
                200, "ab", "length", 2, None, True
            )
            assert cluster.held == {}


async def ask_of(cluster: Cluster, given: dict[str, Any]) -> None:
    await cluster.ask(**given)


@both
async def test_a_decode_engine_that_fails(stream: bool) -> None:
    def fail(turn: int) -> None:
        if turn == 1:
            raise EngineFault("by script")

    async with Cluster(decode=[Script(before_chain=fail)]).running() as cluster:
        answer = await cluster.ask(**fields(stream, max_tokens=9))
        assert not (answer.complete and stream)
        assert (answer.error, answer.finish_reason) == ("decode_failed", None)
        assert "by script" in answer.message
        assert cluster.held == {}


@both
async def test_layouts_that_do_not_fit_are_told_before_anything_is_written(stream: bool) -> None:
    class Other(ScriptedLayout):
        def describe(self) -> Description:
            return {**super().describe(), "dtype": "int64"}

        def sized(self, max_seq_len: int) -> Other:
            return Other(max_seq_len)

    cluster = Cluster(prefill_layout=Other(LONGEST), slots=1)
    async with cluster.running():
        answer = await cluster.ask(**fields(stream, max_tokens=9))
        assert answer.status == 503
        assert answer.error is not None
        assert "int64" in answer.message
        await cluster.idle()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_nodes_by_name(host: str) -> None:
    options = {"host": host}
    async with Cluster(
        transport="tcp", prefill_options=options, decode_options=options
    ).running() as cluster:
        assert (await cluster.ask(**fields(stream=True, max_tokens=3))).text == "abc"


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"host is 'no-such-host\.invalid'"):
        Cluster(transport="tcp", decode_options={"host": "no-such-host.invalid"})
