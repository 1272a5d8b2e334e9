"""Text decoding, through the whole app, streamed and plain."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.cases.asking import (
    BYTE,
    EOS,
    ByteApp,
    Exchange,
    Said,
    ask,
    at,
    batches,
    exchange,
    says,
    tokens,
)
from tilert_engine.scripted import Script
from tilert_stream.testing import Gate

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


@both
@pytest.mark.parametrize("text", ["😀", "你", "안녕", "👨‍👩‍👧‍👦"])
async def test_utf_01_characters_of_several_tokens(text: str, stream: bool) -> None:
    ids = text.encode()
    assert BYTE.decode(ids, skip_special_tokens=True) == text
    for size in range(1, len(ids)):
        app = ByteApp(Script(token=says(ids), chain=batches(*[size] * len(ids))))
        async with app.lifespan():
            said = await ask(app, {"max_tokens": len(ids)}, stream=stream)
        assert said == Said(text, "length", len(ids))


@both
@pytest.mark.parametrize(
    ("fields", "end"),
    [
        pytest.param({"max_tokens": 3}, ("length", 3, None), id="length"),
        pytest.param({"max_tokens": 9}, ("stop", 4, None), id="eos"),
        pytest.param({"max_tokens": 9, "stop_token_ids": [EOS]}, ("stop", 4, EOS), id="stop-id"),
    ],
)
async def test_utf_02_the_end_inside_a_character(
    fields: dict[str, Any], end: tuple[str, int, int | None], stream: bool
) -> None:
    app = ByteApp(Script(token=says(b"\x41\xf0\x9f")))
    async with app.lifespan():
        # ``ask`` sees to it that no text comes with the finish chunk or behind it.
        assert await ask(app, fields, stream=stream) == Said("A\ufffd", *end)


@both
async def test_utf_02_a_stop_string_cut_has_no_half_character(stream: bool) -> None:
    app = ByteApp(Script(token=says(b"AS\xf0\x9f"), chain=batches(3)))
    async with app.lifespan():
        fields = {"stop": ["S"], "max_tokens": 4}
        assert await ask(app, fields, stream=stream) == Said("A", "stop", 2, "S")


@both
@pytest.mark.parametrize(
    ("ids", "text"), [((0x61, 256), "a\ufffd"), ((0x61, 256, 0x62), "a\ufffdb")]
)
async def test_utf_03_a_token_that_is_the_replacement_character(
    ids: tuple[int, ...], text: str, stream: bool
) -> None:
    app = ByteApp(Script(token=says(*ids)))
    async with app.lifespan():
        said = await ask(app, {"max_tokens": len(ids)}, stream=stream)
    assert said == Said(text, "length", len(ids))


@both
async def test_utf_04_bytes_that_no_character_has(stream: bool) -> None:
    app = ByteApp(Script(token=says(b"\x9f" * 500 + b"A"), chain=batches(*[7] * 80)))
    async with app.lifespan():
        said = await ask(app, {"max_tokens": 501}, stream=stream)
    assert said == Said("\ufffd" * 500 + "A", "length", 501)


async def test_utf_04_they_are_not_held() -> None:
    with Gate() as gate:
        script = Script(token=says(b"\x9f" * 500), before_chain=at(7, gate.pass_through))
        app = ByteApp(script)
        async with app.lifespan():
            asked = exchange(app, {"max_tokens": 500}, stream=True)
            async with asked.running(gate):
                await asked.until("\ufffd" * 8)
                gate.open()
    assert asked.text == "\ufffd" * 500


@both
@pytest.mark.parametrize(("token", "text"), [(0xB6, "🌶"), (ord("A"), "A")])
async def test_utf_06_prompt_text_never_comes_out(token: int, text: str, stream: bool) -> None:
    app = ByteApp(Script(token=says(token)))
    prompt = [72, 105, 32, 0xF0, 0x9F, 0x8C]
    async with app.lifespan():
        said = await ask(app, {"prompt": prompt, "max_tokens": 1}, stream=stream)
    assert said == Said(text, "length", 1)


@both
@pytest.mark.parametrize(
    ("parts", "text"), [((257, 257), " the the"), ((b"  ", 257), "   the"), ((b" ",), " ")]
)
async def test_utf_09_spaces_at_the_start_are_kept(
    parts: tuple[bytes | int, ...], text: str, stream: bool
) -> None:
    app = ByteApp(Script(token=says(*parts)))
    count = len(tokens(*parts))
    async with app.lifespan():
        said = await ask(app, {"max_tokens": count}, stream=stream)
    assert said == Said(text, "length", count)


async def test_utf_09_a_token_without_text_is_counted_not_sent() -> None:
    app = ByteApp(Script(token=says(EOS, b"A", EOS, b"B")))
    asked = exchange(app, {"max_tokens": 4, "ignore_eos": True}, stream=True)
    async with app.lifespan():
        await asked.run()
    deltas = [chunk["choices"][0]["delta"] for chunk in asked.chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": "A"}, {"content": "B"}, {}]
    assert asked.chunks[-1]["usage"]["completion_tokens"] == 4


@both
@pytest.mark.parametrize(
    ("ids", "fields", "said"),
    [
        pytest.param((b"hi", EOS, EOS, b"x"), {}, Said("hi", "stop", 3), id="in-one-batch"),
        pytest.param((EOS,), {}, Said("", "stop", 1), id="first"),
        pytest.param(
            (b"hi", EOS, b"x"), {"ignore_eos": True}, Said("hix", "length", 4), id="in-the-middle"
        ),
        pytest.param(
            (b"hi", EOS, b"x"),
            {"ignore_eos": True, "skip_special_tokens": False},
            Said("hi<|eos|>x", "length", 4),
            id="shown",
        ),
    ],
)
async def test_utf_10_special_tokens(
    ids: tuple[bytes | int, ...], fields: dict[str, Any], said: Said, stream: bool
) -> None:
    app = ByteApp(Script(token=says(*ids), chain=batches(4)))
    async with app.lifespan():
        assert await ask(app, fields | {"max_tokens": 4}, stream=stream) == said


async def test_utf_12_line_separators_are_escaped() -> None:
    text = "x\u2028y\u0085z\u2029"
    app = ByteApp(Script(token=says(text.encode())))
    asked = exchange(app, {"max_tokens": len(text.encode())}, stream=True)
    async with app.lifespan():
        await asked.run()
    assert asked.text == text
    wire = asked.content.decode()
    assert wire.splitlines() == wire.split("\n")[:-1], "no client cuts an event in two"


@both
async def test_utf_13_a_request_cut_at_every_offset_reads_the_same(stream: bool) -> None:
    """Also inside ``data``, inside a character, and before a space."""
    text = "né 😀 x"
    fields: dict[str, Any] = {"prompt": text, "max_tokens": len(text.encode()), "stream": stream}
    body = orjson.dumps(fields)
    cuts = [[body[:place], body[place:]] for place in range(len(body) + 1)]
    app = ByteApp()
    async with app.lifespan():
        for parts in [*cuts, [bytes((byte,)) for byte in body]]:
            asked = Exchange(app, parts, "/v1/completions")
            await asked.run()
            answer = asked.text if stream else asked.json["choices"][0]["text"]
            assert answer == text
