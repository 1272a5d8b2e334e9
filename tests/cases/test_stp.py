"""Stop strings, through the whole app, streamed and plain."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.asking import EOS, ByteApp, Said, ask, at, batches, exchange, says
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


@both
async def test_stp_01_the_beginning_of_a_stop_string_is_not_sent(stream: bool) -> None:
    script = Script(token=says(b" DEFGHIJKLM"), chain=batches(3, 1, 2, 1))
    app = ByteApp(script)
    async with app.lifespan():
        said = await ask(app, {"stop": ["DEFGHIJ"], "max_tokens": 11}, stream=stream)
    assert said == Said(" ", "stop", 8, "DEFGHIJ")


@both
@pytest.mark.parametrize(
    ("text", "sizes", "stop", "said"),
    [
        pytest.param(
            b"beta gamma", (3, 6), "beta gamma", Said("", "stop", 10, "beta gamma"), id="words"
        ),
        pytest.param(b"a\n\nb", (1, 1), "\n\n", Said("a", "stop", 3, "\n\n"), id="decode"),
        pytest.param(b"\n\nb", (1,), "\n\n", Said("", "stop", 2, "\n\n"), id="hand-over"),
        pytest.param(b"a\n\nb", (3,), "\n\n", Said("a", "stop", 3, "\n\n"), id="one-batch"),
    ],
)
async def test_stp_02_a_match_across_tokens(
    text: bytes, sizes: tuple[int, ...], stop: str, said: Said, stream: bool
) -> None:
    app = ByteApp(Script(token=says(text), chain=batches(*sizes)))
    async with app.lifespan():
        assert await ask(app, {"stop": stop, "max_tokens": 99}, stream=stream) == said
        assert app.service.ledger.counts == {}


@both
async def test_stp_02_decode_is_cancelled_at_once(stream: bool) -> None:
    """Of 2,000 tokens the engine makes those up to the match, and the chain it is in."""
    turns: list[int] = []
    with Gate() as gate:

        def before_chain(turn: int) -> None:
            turns.append(turn)
            if turn == 4:
                gate.pass_through(turn)

        app = ByteApp(Script(token=says(b"beta" + b"x" * 2000), before_chain=before_chain))
        async with app.lifespan():
            said = await ask(app, {"stop": "beta", "max_tokens": 2000}, stream=stream)
            assert said == Said("", "stop", 4, "beta")
            assert app.service.ledger.counts == {}
            gate.open()
            # INV-2: the only slot serves the next one.
            assert await ask(app, {"max_tokens": 2}, stream=stream) == Said("be", "length", 2)
    assert turns == [*range(len(turns) - 1), 0]
    assert len(turns) <= 6
    assert app.decode_engine.busy == {}


async def test_stp_04_only_a_beginning_of_a_stop_string_is_held() -> None:
    """Forty characters of stop string; what cannot begin it is out while the engine stands."""
    with Gate() as gate:
        script = Script(token=says(b"a long text <x"), before_chain=at(12, gate.pass_through))
        app = ByteApp(script)
        asked = exchange(app, {"stop": ["<" + "y" * 39], "max_tokens": 14}, stream=True)
        async with app.lifespan(), asked.running(gate):
            await gate.arrival()
            await asked.until("a long text ")
            gate.open()
    assert asked.pieces[-1] == "<x", "what broke the beginning off brings it out"


@both
async def test_stp_04_a_beginning_at_the_end_comes_out(stream: bool) -> None:
    stop = "<" + "y" * 39
    app = ByteApp(Script(token=says(b"end <y")))
    async with app.lifespan():
        said = await ask(app, {"stop": [stop], "max_tokens": 6}, stream=stream)
    assert said == Said("end <y", "length", 6)


async def test_stp_05_nothing_is_held_when_the_stop_string_stays() -> None:
    with Gate() as gate:
        script = Script(
            token=says(b"hi STOP and more"),
            chain=batches(4, 6),
            before_chain=at(1, gate.pass_through),
        )
        app = ByteApp(script)
        fields = {"stop": ["STOP"], "include_stop_str_in_output": True, "max_tokens": 99}
        asked = exchange(app, fields, stream=True)
        async with app.lifespan(), asked.running(gate):
            await asked.until("hi ST")
            gate.open()
    assert asked.text == "hi STOP"
    end = asked.chunks[-2]["choices"][0]
    assert (end["finish_reason"], end["stop_reason"]) == ("stop", "STOP")
    assert asked.chunks[-1]["usage"]["completion_tokens"] == 7


@both
async def test_stp_07_what_was_held_comes_out_at_the_end(stream: bool) -> None:
    app = ByteApp(Script(token=says(b"alpha S", EOS)))
    async with app.lifespan():
        said = await ask(app, {"stop": ["STOP"], "max_tokens": 99}, stream=stream)
    assert said == Said("alpha S", "stop", 8)


@both
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"stop": ["S"]}, Said("", "stop", 1, "S"), id="stop-string"),
        pytest.param({"stop_token_ids": [ord("S")]}, Said("", "stop", 1, ord("S")), id="stop-id"),
        pytest.param({"max_tokens": 1}, Said("S", "length", 1), id="budget"),
    ],
)
async def test_stp_08_the_first_token_ends_it(
    fields: dict[str, Any], said: Said, stream: bool
) -> None:
    app = ByteApp(Script(token=says(b"STOP")))
    async with app.lifespan():
        assert await ask(app, fields, stream=stream) == said
        assert app.service.ledger.counts == {}


@pytest.mark.parametrize("stop", ["", [""], ["", "E"], 5, [1], {}, [str(n) for n in range(200)]])
async def test_stp_09_refused_before_prefill(stop: object) -> None:
    chunks: list[int] = []
    app = ByteApp(Script(before_chunk=chunks.append))
    async with app.lifespan():
        for stream in (True, False):
            asked = exchange(app, {"stop": stop}, stream=stream)
            await asked.run()
            assert asked.status == 400
            assert asked.json["error"]["param"].startswith("stop")
    assert chunks == []


@both
@pytest.mark.parametrize("stop", [[], None])
async def test_stp_09_no_stop(stop: object, stream: bool) -> None:
    app = ByteApp()
    async with app.lifespan():
        said = await ask(app, {"stop": stop, "max_tokens": 6}, stream=stream)
    assert said == Said("abcabc", "length", 6)


@pytest.mark.parametrize(
    ("include", "text"), [(None, "a"), (False, "a"), (True, "ab"), (1, None), ("true", None)]
)
async def test_stp_09_include_stop_means_what_it_says(include: object, text: str | None) -> None:
    app = ByteApp()
    async with app.lifespan():
        fields = {"stop": "b", "include_stop_str_in_output": include, "max_tokens": 6}
        if text is None:
            asked = exchange(app, fields)
            await asked.run()
            assert (asked.status, asked.json["error"]["param"]) == (
                400,
                "include_stop_str_in_output",
            )
        else:
            assert await ask(app, fields, stream=False) == Said(text, "stop", 2, "b")
