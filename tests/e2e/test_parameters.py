"""What a request asks of the engine has effect, in one process and divided, streamed and not."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson
import pytest

from tests.cases.asking import Exchange
from tests.e2e.told import ASKED, TOKENIZER, Sides, Told, tell
from tilert_stream.abc import capabilities_of
from tilert_stream.asgi import App
from tilert_stream.openai.objects import model_list
from tilert_stream.serve.request_options import capable

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
sides_param = pytest.mark.parametrize("side", ["one", "split"])


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Both libraries; a second loop of asyncio's would show nothing of an engine."""
    return request.param


@pytest.fixture(scope="module")
def sides() -> Sides:
    return Sides()


@both
@sides_param
async def test_pd_16_every_token_has_its_logprob(
    sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides.serving(side, monkeypatch) as app:
        plain = await tell(app, {"max_tokens": 60}, stream=stream)
        told = await tell(
            app,
            {"max_tokens": 60, "logprobs": True, "top_logprobs": 3, "return_token_ids": True},
            stream=stream,
        )
    assert (told.status, told.error) == (200, {})
    choice = told.only
    assert (choice.text, choice.finish_reason) == (plain.only.text, "stop")
    assert len(choice.logprobs) == len(choice.token_ids) == told.usage["completion_tokens"]
    spelled = b"".join(bytes(entry["bytes"]) for entry in choice.logprobs[:-1])
    assert spelled.decode() == choice.text, "the last entry is the stop token's"
    assert TOKENIZER.decode(choice.token_ids) == choice.text
    for entry in choice.logprobs:
        top = entry["top_logprobs"]
        assert len(top) == 3
        assert top[0]["token"] == entry["token"], "a greedy token is the likeliest"
        assert top[0]["logprob"] == pytest.approx(entry["logprob"], abs=1e-5)
        assert [each["logprob"] for each in top] == sorted(
            (each["logprob"] for each in top), reverse=True
        )
        assert sum(math.exp(each["logprob"]) for each in top) <= 1.00001
    assert told.prompt_token_ids is not None
    assert len(told.prompt_token_ids) == told.usage["prompt_tokens"]


@both
@sides_param
async def test_a_completions_logprobs_are_four_lists(
    sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"prompt": "The river", "logprobs": 2, "return_token_ids": True}
    async with sides.serving(side, monkeypatch) as app:
        told = await tell(app, fields, stream=stream)
        named = await tell(app, fields | {"return_tokens_as_token_ids": True}, stream=stream)
    choice, lists = told.only, told.only.lists
    count = told.usage["completion_tokens"]
    assert {name: len(values) for name, values in lists.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), count
    )
    for place, offset in enumerate(lists["text_offset"]):
        assert choice.text[offset:].startswith(lists["tokens"][place])
    for likely, token in zip(lists["top_logprobs"], lists["tokens"], strict=True):
        assert token in likely
        assert len(likely) in (2, 3)
    assert choice.prompt_token_ids == TOKENIZER.encode("The river").ids
    assert named.only.lists["tokens"] == [f"token_id:{token}" for token in choice.token_ids]


@both
@sides_param
async def test_an_echoed_prompt_has_its_logprobs(
    sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was an answer's log-probability is the prompt's where the answer is given as prompt."""
    async with sides.serving(side, monkeypatch) as app:
        fields: dict[str, Any] = {
            "prompt": "The riv\u00e9r",
            "logprobs": 2,
            "return_token_ids": True,
        }
        answer = await tell(app, fields, stream=stream)
        said = answer.only.token_ids
        given = answer.only.prompt_token_ids
        assert given is not None
        again = fields | {"prompt": given + said, "echo": True}
        told = await tell(app, again, stream=stream)
        texts = [fields | {"echo": True, "n": 2}, fields | {"echo": True, "prompt": ["A", "The"]}]
        several = [await tell(app, each, stream=stream) for each in texts]
    assert told.status == 200, told.error
    lists = told.only.lists
    count = len(given) + len(said) + told.usage["completion_tokens"]
    assert {name: len(each) for name, each in lists.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), count
    )
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    place = slice(len(given), len(given) + len(said))
    assert lists["tokens"][place] == answer.only.lists["tokens"]
    # Decode reads its cache back in 8 bits.
    assert lists["token_logprobs"][place] == pytest.approx(
        answer.only.lists["token_logprobs"], abs=0.1
    )
    assert all(
        2 <= len(likely) <= 3 and likely[token] == logprob
        for likely, token, logprob in zip(
            lists["top_logprobs"][1:], lists["tokens"][1:], lists["token_logprobs"][1:], strict=True
        )
    )
    text = told.only.text
    assert text.startswith("The riv\u00e9r" + answer.only.text)
    ends = [*lists["text_offset"][1:], len(text)]
    for token, begin, end in zip(lists["tokens"], lists["text_offset"], ends, strict=True):
        if token.isascii():
            assert text[begin:end] in (token, ""), "a special token may have no text"
    for response in several:
        for choice in response.choices.values():
            assert choice.lists["token_logprobs"][0] is None
            assert None not in choice.lists["token_logprobs"][1:]
            assert len(choice.lists["tokens"]) == len(choice.lists["text_offset"])


@sides_param
async def test_the_prompts_own_logprobs(
    sides: Sides, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides.serving(side, monkeypatch) as app:
        fields: dict[str, Any] = {"prompt_logprobs": 1, "return_token_ids": True}
        chat = await tell(app, fields, stream=False)
        fields |= {"prompt": "The river", "echo": True, "logprobs": 3}
        completion = await tell(app, fields, stream=False)
        alone = await tell(app, {"prompt": [5], "prompt_logprobs": 0}, stream=False)
    for ids, entries in (
        (chat.prompt_token_ids, chat.prompt_logprobs),
        (completion.only.prompt_token_ids, completion.only.prompt_logprobs),
    ):
        assert ids is not None
        assert entries is not None
        assert entries[0] is None
        assert len(entries) == len(ids)
        for token, entry in zip(ids[1:], entries[1:], strict=True):
            assert len(entry) == (1 if entry[str(token)]["rank"] == 1 else 2)
            assert entry[str(token)]["decoded_token"]
            assert all(told["logprob"] <= 0 for told in entry.values())
    ids, told = completion.only.prompt_token_ids or [], completion.only.prompt_logprobs or []
    own = [entry[str(token)]["logprob"] for token, entry in zip(ids[1:], told[1:], strict=True)]
    assert own == completion.only.lists["token_logprobs"][1 : len(ids)]
    assert alone.only.prompt_logprobs == [None]


@both
@sides_param
async def test_token_ids_have_their_logprobs(
    sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides.serving(side, monkeypatch) as app:
        fields: dict[str, Any] = {"prompt": "The river", "logprobs": 2, "return_token_ids": True}
        fields |= {"return_tokens_as_token_ids": True}
        text = await tell(app, fields, stream=stream)
        sampling: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "logprobs": 2, "n": 2}
        if not stream:
            sampling["prompt_logprobs"] = 1
        body: dict[str, Any] = {"token_ids": text.only.prompt_token_ids, "stream": stream}
        asked = Exchange(
            app,
            [orjson.dumps(body | {"sampling_params": sampling})],
            "/inference/v1/generate",
        )
        await asked.run()
    assert asked.status == 200, asked.content
    told = Told(200)
    for each in asked.chunks if stream else [asked.json]:
        told.take(each)
    assert sorted(told.choices) == [0, 1]
    lists = text.only.lists
    for choice in told.choices.values():
        assert choice.token_ids == text.only.token_ids
        assert [entry["token"] for entry in choice.logprobs] == lists["tokens"]
        own = [entry["logprob"] for entry in choice.logprobs]
        assert own == pytest.approx(lists["token_logprobs"])
        assert {len(entry["top_logprobs"]) for entry in choice.logprobs} == {2}
    if not stream:
        assert told.prompt_logprobs is not None
        assert len(told.prompt_logprobs) == len(text.only.prompt_token_ids or ())


@both
@sides_param
async def test_logprobs_stay_beside_their_text_where_a_stop_string_cuts(
    sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides.serving(side, monkeypatch) as app:
        whole = await tell(app, {}, stream=stream)
        stop = whole.only.text[10:14]
        told = await tell(app, {"logprobs": True, "stop": stop}, stream=stream)
    choice = told.only
    assert choice.finish_reason == "stop"
    assert choice.text == whole.only.text[: whole.only.text.index(stop)]
    assert len(choice.logprobs) == told.usage["completion_tokens"]
    said = b"".join(bytes(entry["bytes"]) for entry in choice.logprobs).decode()
    assert said.startswith(choice.text + stop)


@both
@sides_param
async def test_penalties_and_bias_change_the_answer(
    sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides.serving(side, monkeypatch) as app:
        plain = await tell(app, {"return_token_ids": True}, stream=stream)
        first, second, *_ = plain.only.token_ids
        changes: list[dict[str, Any]] = [
            {"logit_bias": {str(first): -100}},
            {"logit_bias": {str(second): -100}},
            {"repetition_penalty": 5.0},
            {"presence_penalty": 2, "max_tokens": 40},
            {"frequency_penalty": 2, "max_tokens": 40},
        ]
        for fields in changes:
            told = await tell(app, fields | {"return_token_ids": True}, stream=stream)
            assert told.status == 200, told.error
            got = told.only.token_ids[: len(plain.only.token_ids)]
            if "logit_bias" in fields:
                assert got != plain.only.token_ids
                assert not {int(name) for name in fields["logit_bias"]} & {*told.only.token_ids}
            if "repetition_penalty" in fields:
                assert got != plain.only.token_ids
        assert await tell(app, {"return_token_ids": True}, stream=stream) == plain


@sides_param
async def test_both_sides_and_both_ways_say_the_same(
    sides: Sides, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeded, with every field at once: the split changes nothing, and neither does streaming."""
    fields: dict[str, Any] = {
        "temperature": 0.9,
        "seed": 11,
        "max_tokens": 30,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {"100": 2.5, "101": -4},
        "min_p": 0.02,
        "min_tokens": 20,
        "return_token_ids": True,
        "logprobs": True,
    }
    said: list[list[int]] = []
    for each in ("one", side):
        async with sides.serving(each, monkeypatch) as app:
            for stream in (True, False):
                told = await tell(app, fields, stream=stream)
                assert told.status == 200, told.error
                said.append(told.only.token_ids)
                assert len(told.only.logprobs) == len(told.only.token_ids) >= 20
    assert said == [said[0]] * 4


@both
@sides_param
async def test_pd_15_n_answers_side_by_side(
    sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More answers than slots; usage is their sum; a choice is what a request of its own says."""
    fields = {"temperature": 1.0, "seed": 40, "max_tokens": 15, "return_token_ids": True}
    async with sides.serving(side, monkeypatch) as app:
        told = await tell(app, fields | {"n": 3, "best_of": 3}, stream=stream)
        alone = [
            await tell(app, fields | {"seed": 40 + index}, stream=stream) for index in range(3)
        ]
    assert told.status == 200, told.error
    assert sorted(told.choices) == [0, 1, 2]
    for index, other in enumerate(alone):
        assert told.choices[index].text == other.only.text
        assert told.choices[index].finish_reason == other.only.finish_reason
        assert told.choices[index].token_ids == other.only.token_ids
    assert len({choice.text for choice in told.choices.values()}) == 3
    prompt = alone[0].usage["prompt_tokens"]
    total = sum(each.usage["completion_tokens"] for each in alone)
    assert told.usage == {
        "prompt_tokens": prompt,
        "completion_tokens": total,
        "total_tokens": prompt + total,
    }


@both
@sides_param
async def test_echo(sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = TOKENIZER.encode("The river").ids
    chat = {
        "messages": [*ASKED["messages"], {"role": "assistant", "content": "A river is"}],
        "add_generation_prompt": False,
    }
    async with sides.serving(side, monkeypatch) as app:
        for fields, head in (
            ({"prompt": "The river"}, "The river"),
            ({"prompt": ids}, "The river"),
            (chat, "A river is"),
        ):
            plain = await tell(app, fields, stream=stream)
            told = await tell(app, fields | {"echo": True}, stream=stream)
            assert told.only.text == head + plain.only.text
            assert told.usage == plain.usage


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "wet": {"type": "boolean"},
    },
    "required": ["name", "size", "wet"],
    "additionalProperties": False,
}


def is_of_schema(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"name", "size", "wet"}
    assert isinstance(value["name"], str)
    assert isinstance(value["size"], int)
    assert isinstance(value["wet"], bool)


@both
@sides_param
async def test_pd_07_pd_18_the_answer_keeps_to_a_schema(
    sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With multi-token prediction, drawn at high temperature: whatever ends with stop is valid."""
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "river", "schema": SCHEMA}}
    async with sides.serving(side, monkeypatch) as app:
        for seed in range(2):
            fields = {"response_format": form, "temperature": 1.0, "seed": seed, "max_tokens": 150}
            told = await tell(app, fields | {"logprobs": True}, stream=stream)
            assert told.status == 200, told.error
            assert told.only.finish_reason == "stop"
            is_of_schema(told.only.text)
            assert len(told.only.logprobs) == told.usage["completion_tokens"]
        for limit in (1, 3):
            short = await tell(app, {"response_format": form, "max_tokens": limit}, stream=stream)
            assert short.only.finish_reason == "length", "what is cut is not said to be whole"
            assert short.usage["completion_tokens"] == limit
        free = await tell(app, {}, stream=stream)
        assert not free.only.text.startswith("{")


@both
@sides_param
@pytest.mark.parametrize(
    ("form", "right"),
    [
        ({"response_format": {"type": "json_object"}}, None),
        ({"structured_outputs": {"choice": ["wet", "dry/salt"]}}, ("wet", "dry/salt")),
        ({"structured_outputs": {"regex": "a/[0-9]{3}"}}, None),
    ],
    ids=["json_object", "choice", "regex"],
)
async def test_other_grammars(
    sides: Sides,
    side: str,
    stream: bool,
    form: dict[str, Any],
    right: tuple[str, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("llguidance")
    async with sides.serving(side, monkeypatch) as app:
        told = await tell(
            app, form | {"max_tokens": 120, "temperature": 1, "seed": 3}, stream=stream
        )
    assert told.status == 200, told.error
    text = told.only.text
    if right is not None:
        assert text in right
    elif "structured_outputs" in form:
        assert (text[:2], len(text), text[2:].isdigit()) == ("a/", 5, True)
    elif told.only.finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    else:
        assert text.startswith("{")


BAD_SCHEMAS: list[tuple[dict[str, object], str]] = [
    ({"type": "objec"}, ""),
    (
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": 5}}}},
        ".properties.a.items",
    ),
    ({"anyOf": [{"type": "string"}, {"type": "string", "pattern": "("}]}, ".anyOf[1]"),
    ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, ".properties.a"),
]


async def refused(app: App, fields: dict[str, Any], param: str, *, stream: bool) -> None:
    told = await tell(app, fields, stream=stream)
    assert told.status == 400
    assert told.error["type"] == "invalid_request_error"
    assert told.error["message"].startswith(param + " cannot be followed")
    assert told.error["param"] == param


@both
@sides_param
async def test_a_schema_that_cannot_be_followed_is_a_400_that_names_the_place(
    sides: Sides, side: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")
    async with sides.serving(side, monkeypatch) as app:
        for schema, place in BAD_SCHEMAS:
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            for fields, param in (
                ({"response_format": form}, "response_format.json_schema.schema" + place),
                ({"structured_outputs": {"json": schema}}, "structured_outputs.json" + place),
            ):
                await refused(app, fields, param, stream=stream)
        for name, wrong in (("regex", "("), ("grammar", "a")):
            await refused(
                app,
                {"structured_outputs": {name: wrong}},
                f"structured_outputs.{name}",
                stream=stream,
            )
        assert (await tell(app, {"max_tokens": 2}, stream=stream)).status == 200


def test_the_card_shows_what_the_engine_can_do(sides: Sides) -> None:
    model = sides.model
    both_can = capabilities_of(model.prefill)
    assert {"logprobs", "logit_bias", "presence_penalty", "min_p", "seed"} <= both_can
    assert capabilities_of(model.decode) == both_can
    models: Any = model_list([capable(model.front.card, model.prefill, model.decode)])
    assert models["data"][0]["capabilities"] == sorted(both_can)
