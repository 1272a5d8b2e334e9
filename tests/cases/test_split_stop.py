"""Stop strings, and a first token that ends it, through a router and its nodes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.cases.asking import EOS, Said, ask, at, batches, exchange, says
from tests.cases.sides import answering, routing_to
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate
from tilert_stream.testing.pd_nodes import ScriptedDecodeNode, ScriptedPrefillNode

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
THE = 257
""" " the", as one token."""


@both
async def test_stp_01_the_beginning_of_a_stop_string_is_not_sent(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(token=says(b" DEFGHIJKLM"), chain=batches(3, 1, 2, 1))
    async with answering("split", script, monkeypatch) as app:
        said = await ask(app, {"stop": ["DEFGHIJ"], "max_tokens": 11}, stream=stream)
    assert said == Said(" ", "stop", 8, "DEFGHIJ")


@both
@pytest.mark.parametrize(
    ("text", "stop", "said"),
    [
        pytest.param(b"beta gamma", "beta gamma", Said("", "stop", 10, "beta gamma"), id="words"),
        pytest.param(b"a\n\nb", "\n\n", Said("a", "stop", 3, "\n\n"), id="decode"),
        pytest.param(b"\n\nb", "\n\n", Said("", "stop", 2, "\n\n"), id="hand-over"),
    ],
)
async def test_stp_02_a_match_across_tokens(
    text: bytes, stop: str, said: Said, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is told at once; of its 2,000 tokens it makes no further one."""
    go = anyio.Event()

    async def between(index: int) -> None:
        if index == said.completion_tokens:
            await go.wait()

    prefill = ScriptedPrefillNode(first_token=lambda _prompt: text[0])
    decode = ScriptedDecodeNode(
        token=lambda index: text[index] if index < len(text) else ord("x"), between=between
    )
    async with routing_to(prefill, decode, monkeypatch) as app:
        assert await ask(app, {"stop": stop, "max_tokens": 2000}, stream=stream) == said
        while decode.held or not (decode.cancelled and decode.left):
            await anyio.lowlevel.checkpoint()
        assert len(decode.cancelled) == 1
        assert decode.left == 1
        go.set()
        assert (await ask(app, {"max_tokens": 1}, stream=stream)).completion_tokens == 1


@both
async def test_stp_04_stp_07_what_was_held_comes_out_at_the_end(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(token=says(b"alpha S", EOS))
    async with answering("split", script, monkeypatch) as app:
        for stop in ("STOP", "S" + "y" * 39):
            said = await ask(app, {"stop": [stop], "max_tokens": 99}, stream=stream)
            assert said == Said("alpha S", "stop", 8)
            said = await ask(app, {"stop": [stop], "max_tokens": 7}, stream=stream)
            assert said == Said("alpha S", "length", 7)


async def test_stp_05_nothing_is_held_when_the_stop_string_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = {"stop": ["STOP"], "include_stop_str_in_output": True, "max_tokens": 99}
    with Gate() as gate:
        script = Script(
            token=says(b"hi STOP and more"),
            chain=batches(4, 6),
            before_chain=at(1, gate.pass_through),
        )
        async with answering("split", script, monkeypatch) as app:
            asked = exchange(app, fields, stream=True)
            async with asked.running(gate):
                await asked.until("hi ST")
                gate.open()
            plain = await ask(app, fields, stream=False)
    assert asked.text == plain.text == "hi STOP"
    assert asked.chunks[-2]["choices"][0]["stop_reason"] == plain.stop_reason == "STOP"
    assert asked.chunks[-1]["usage"]["completion_tokens"] == plain.completion_tokens == 7


@both
@pytest.mark.parametrize(
    ("first", "fields", "said"),
    [
        pytest.param(THE, {"stop": [" the"]}, Said("", "stop", 1, " the"), id="stop-string"),
        pytest.param(EOS, {}, Said("", "stop", 1), id="eos"),
        pytest.param(83, {"stop_token_ids": [83]}, Said("", "stop", 1, 83), id="stop-token-id"),
        pytest.param(83, {"max_tokens": 1}, Said("S", "length", 1), id="budget"),
    ],
)
async def test_stp_08_a_first_token_that_ends_it_is_never_decoded(
    first: int, fields: dict[str, Any], said: Said, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop token ends it before the node is asked; a stop string is found on the way out."""
    prefill = ScriptedPrefillNode(first_token=lambda _prompt: first)
    decode = ScriptedDecodeNode(max_seq_len=9000)
    async with routing_to(prefill, decode, monkeypatch) as app:
        assert await ask(app, fields, stream=stream) == said
        while decode.held or not decode.cancelled:
            await anyio.lowlevel.checkpoint()
        assert len(decode.cancelled) == 1
        assert "/pd/decode" not in decode.paths() or "stop" in fields


@both
@pytest.mark.parametrize("stop", ["", [""], ["", "E"], 5, [1], {}, [str(n) for n in range(200)]])
async def test_stp_09_a_wrong_stop_is_refused_before_any_node_is_asked(
    stop: object, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = ScriptedPrefillNode(), ScriptedDecodeNode()
    async with routing_to(prefill, decode, monkeypatch) as app:
        asked = exchange(app, {"stop": stop}, stream=stream)
        await asked.run()
        assert asked.status == 400
        assert asked.json["error"]["param"].startswith("stop")
        assert (prefill.calls, decode.paths()) == ([], [])
        nothing: list[dict[str, Any]] = [{"stop": []}, {"stop": None}]
        for fields in nothing:
            said = await ask(app, fields | {"max_tokens": 1}, stream=stream)
            assert said == Said("a", "length", 1)
