"""The remote legs and the project's own nodes: every part real but the model."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.nodes.routing import LIMIT, FixedLayout, make, routing
from tilert_engine.decode_worker import DecodeWorker
from tilert_engine.layouts.landed import LandingDecode
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.prefill_worker import PrefillWorker
from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
from tilert_stream.cluster.errors import LayoutMismatch
from tilert_stream.errors import ContextLengthExceeded, EngineFault
from tilert_stream.events import Finished, Limits
from tilert_stream.model.byte_tokenizer import EOS, byte_tokenizer
from tilert_stream.model.card import ModelCard
from tilert_stream.nodes.decode_app import DecodeApp
from tilert_stream.nodes.decode_node import DecodeNode
from tilert_stream.nodes.first_token import FirstToken
from tilert_stream.nodes.landing_port import LandingPort
from tilert_stream.nodes.prefill_app import PrefillApp
from tilert_stream.nodes.prefill_node import HandOverDesk, PrefillAndHandOver
from tilert_stream.pipeline import Pipeline
from tilert_stream.service import Service
from tilert_stream.stages.decode import Decode
from tilert_stream.stages.kv_import import ImportKV
from tilert_stream.stages.reserve import Reserve
from tilert_stream.testing import Gate
from tilert_transports.control.auth import ClusterKey, RequestVerifier

WINDOW = 256


class RealDecode(DecodeApp):
    """A decode node on the scripted engine."""

    def __init__(self, script: Script, *, slots: int = 1, key: ClusterKey | None = None) -> None:
        self.engine = ScriptedDecode(script, slots=slots, max_seq_len=WINDOW)
        layout = ScriptedLayout.of(self.engine)
        worker: DecodeWorker[Any] = DecodeWorker(LandingDecode(self.engine, layout))
        self._landing = LandingPort(
            layout,
            transport="tcp",
            slots=slots,
            regions=slots + 2,
            host="127.0.0.1",
            port=0,
            key=key,
        )
        landing = self._landing
        node = DecodeNode(worker, landing.reserve, landing.view, landing.refuse)
        pipeline = (
            Pipeline()
            .then(Reserve(node))
            .then(FirstToken())
            .then(ImportKV(node))
            .then(Decode(node))
        )
        super().__init__(
            node,
            Service(pipeline, workers=(worker,)),
            layout=layout.describe(),
            eos_ids=frozenset({EOS}),
            port=self._landing,
            verifier=None if key is None else RequestVerifier(key),
        )

    @property
    def ctrl_port(self) -> int:
        return self._landing.port


class RealPrefill(PrefillApp):
    """A prefill node on the scripted engine."""

    def __init__(self, script: Script, *, key: ClusterKey | None = None) -> None:
        engine = ScriptedPrefill(script, max_seq_len=WINDOW)
        worker: PrefillWorker[Any] = PrefillWorker(engine)
        desk = HandOverDesk(
            ScriptedLayout.of(engine),
            transport="tcp",
            host="127.0.0.1",
            stagings=4,
            timeout=LIMIT,
            key=key,
        )
        tokenizer = byte_tokenizer()
        card = ModelCard(
            names=("prefill-model",),
            tokenizer=tokenizer,
            max_seq_len=WINDOW,
            vocab_size=tokenizer.vocab_size,
            created=1_700_000_000,
            chat_template=None,
            eos_ids=frozenset({EOS}),
        )
        pipeline = Pipeline().then(PrefillAndHandOver(worker, desk))
        super().__init__(
            Service(pipeline, workers=(worker,)),
            card,
            tokenizer,
            desk,
            layout=ScriptedLayout(WINDOW).describe(),
        )


@pytest.mark.parametrize("n", [2, 3, 40])
@pytest.mark.parametrize("size", [1, 4])
async def test_a_whole_answer(n: int, size: int) -> None:
    script = Script(chain=lambda _turn: size)
    decode = RealDecode(script)
    async with routing([RealPrefill(script)], [decode], layouts=FixedLayout(_layout())) as router:
        assert await router.answer(make(n)) == (("abc" * 14)[:n], n, Finished("length"))
    assert decode.engine.busy == {}


def _layout() -> dict[str, object]:
    return dict(ScriptedLayout(WINDOW).describe())


def _ends_after(count: int, last: int) -> Script:
    return Script(token=lambda prompt, index: last if index == count else prompt[index % 3])


@pytest.mark.parametrize(
    ("limits", "last", "stop_reason"),
    [
        pytest.param(Limits(50, eos_ids=frozenset({EOS})), EOS, None, id="eos"),
        pytest.param(Limits(50, stop_ids=frozenset({9})), 9, 9, id="stop_token_ids"),
    ],
)
@pytest.mark.parametrize("count", [1, 4])
async def test_the_ending_stop_token_is_counted_and_has_no_text(
    limits: Limits, last: int, stop_reason: int | None, count: int
) -> None:
    script = _ends_after(count, last)
    async with routing([RealPrefill(script)], [RealDecode(script)], serves_next=False) as router:
        assert await router.answer(make(limits)) == (
            ("abc" * 3)[:count],
            count + 1,
            Finished("stop", stop_reason),
        )


async def test_with_a_cluster_key() -> None:
    key = ClusterKey("0123456789abcdef")
    script = Script()
    async with routing(
        [RealPrefill(script, key=key)], [RealDecode(script, key=key)], sign=key.sign
    ) as router:
        assert await router.answer(make(6)) == ("abcabc", 6, Finished("length"))


async def test_without_the_cluster_key() -> None:
    script = Script()
    decode = RealDecode(script, key=ClusterKey("0123456789abcdef"))
    async with routing([RealPrefill(script)], [decode], serves_next=False) as router:
        assert (await router.error_of(make())).status == 502


async def test_kv_06_a_mismatch_is_known_before_a_prompt_is_computed() -> None:
    script = Script()
    layouts = FixedLayout(_layout() | {"dtype": "bfloat16"})
    async with routing(
        [RealPrefill(script)], [RealDecode(script)], layouts=layouts, serves_next=False
    ) as router:
        error = await router.error_of(make())
        assert isinstance(error, LayoutMismatch)
        assert (error.status, error.code) == (503, "kv_handshake_refused")
        assert "--dtype" in error.message
        assert "bfloat16" in error.message
        assert "int32" in error.message


async def test_a_layout_that_has_changed_since_is_asked_for_anew() -> None:
    """Prefill was started with another model, and now has the right one again."""
    script = Script()
    layouts = FixedLayout(_layout() | {"dtype": "bfloat16"}, _layout())
    async with routing([RealPrefill(script)], [RealDecode(script)], layouts=layouts) as router:
        assert await router.answer(make(6)) == ("abcabc", 6, Finished("length"))
    assert layouts.common == _layout()


async def test_kv_05_what_never_fits_is_a_400_at_once() -> None:
    script = Script()
    async with routing([RealPrefill(script)], [RealDecode(script)]) as router:
        assert isinstance(await router.error_of(make(WINDOW)), ContextLengthExceeded)


async def test_busy_nodes_and_free_ones() -> None:
    script = Script()
    decodes = [RealDecode(script), RealDecode(script)]
    async with routing([RealPrefill(script)], decodes) as router:
        answers: list[Finished] = []

        async def ask(number: int) -> None:
            answers.append((await router.answer(make(40, f"{number:04x}")))[2])

        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(ask, number)
        assert answers == [Finished("length")] * 2


@pytest.mark.parametrize("place", ["before_chunk", "before_import", "before_chain"])
async def test_dis_04_the_client_leaves_while_an_engine_is_at(place: str) -> None:
    with Gate() as gate:
        hooks: dict[str, Any] = {place: gate.pass_through}
        script = Script(**hooks)
        decode = RealDecode(script)
        async with routing([RealPrefill(script)], [decode]) as router:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(router.answer, make(200))
                await gate.arrival()
                tasks.cancel_scope.cancel()
            assert router.service.ledger.counts == {}
            gate.open()
            await router.everything_is_back()
            while decode.node.full or decode.node.requests:
                await anyio.lowlevel.checkpoint()
    assert decode.engine.busy == {}


async def test_err_02_a_fault_of_the_decode_engine() -> None:
    faults = [EngineFault("a bad page")]

    def fail_once(number: int) -> None:
        if faults and number == 2:
            raise faults.pop()

    script = Script(before_chain=fail_once)
    async with routing([RealPrefill(script)], [RealDecode(script)]) as router:
        text, _, outcome = await router.answer(make(50))
        assert "abcabc".startswith(text)
        assert text.startswith("a")
        assert outcome.error is not None
        assert "a bad page" in outcome.error.message


async def test_the_prompt_that_lands_is_the_one_that_was_asked_for() -> None:
    """The answer is made of the KV cache's own ids."""
    script = Script()
    async with routing([RealPrefill(script)], [RealDecode(script)]) as router:
        for word in (b"hello", b"x", b"prompt"):
            request = make(len(word) * 2, word.hex())
            request = type(request)(request.id, tuple(word), request.limits)
            text, _, _ = await router.answer(request)
            assert text == (word * 2).decode()
