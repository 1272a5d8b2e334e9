"""The paths beside completions, and one error object for everything that goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from tilert_engine.scripted import Script
from tilert_stream.errors import EngineFault
from tilert_stream.openai import answers
from tilert_stream.openai.openapi import describe_api
from tilert_stream.openai.parameters import PARAMETERS
from tilert_stream.testing.apps import ScriptedApp

Request = Callable[..., Any]
GENERATE = "/inference/v1/generate"
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def ids(sampling: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    given = {"max_tokens": 5} if sampling is None else sampling
    return {"token_ids": [97, 98, 99], "sampling_params": given, **fields}


# --- token ids in and out ----------------------------------------------------------------------


async def test_token_ids_in_and_out(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, GENERATE, ids()).run()
    assert answer.status == 200
    assert answer.json["choices"] == [
        {
            "index": 0,
            "token_ids": [97, 98, 99, 97, 98],
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert answer.json["usage"] == USAGE
    assert answer.json["request_id"] == answer.headers["x-request-id"]
    answers.GenerateAnswer.model_validate(answer.json)


@pytest.mark.parametrize("counted", [True, False])
async def test_token_ids_streamed(request_to: Request, *, counted: bool) -> None:
    app = ScriptedApp(Script(chain=lambda _turn: 2))
    options = {"include_usage": True, "continuous_usage_stats": counted}
    async with app.lifespan():
        body = ids(stream=True, stream_options=options, request_id="mine")
        answer = await request_to(app, GENERATE, body).run()
    assert answer.content.endswith(b"data: [DONE]\n\n")
    *chunks, end, usage = answer.events
    streamed = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert streamed == [97, 98, 99, 97, 98]
    assert {chunk["request_id"] for chunk in answer.events} == {"mine"}
    assert end["choices"][0] == {
        "index": 0,
        "token_ids": [],
        "logprobs": None,
        "finish_reason": "length",
    }
    assert (usage["choices"], usage["usage"]) == ([], USAGE)
    assert all(("usage" in chunk) is counted for chunk in (*chunks, end))


@pytest.mark.parametrize("stream", [True, False])
async def test_several_answers_in_token_ids(request_to: Request, *, stream: bool) -> None:
    app = ScriptedApp(slots=2)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with app.lifespan():
        body = ids({"max_tokens": 4, "n": 3}, request_id="mine", **options)
        answer = await request_to(app, GENERATE, body).run()
        assert app.service.ledger.counts == {}
    bodies = answer.events if stream else [answer.json]
    streamed: dict[int, list[int]] = {}
    reasons: dict[int, str] = {}
    for each in bodies:
        assert (each["request_id"], each["output_mode"]) == ("mine", "tokens")
        for choice in each["choices"]:
            streamed.setdefault(choice["index"], []).extend(choice["token_ids"])
            if choice["finish_reason"] is not None:
                reasons[choice["index"]] = choice["finish_reason"]
    assert streamed == {index: [97, 98, 99, 97] for index in range(3)}
    assert reasons == dict.fromkeys(range(3), "length")
    usage = {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}
    assert bodies[-1]["usage"] == usage
    if not stream:
        answers.GenerateAnswer.model_validate(answer.json)
    else:
        assert answer.content.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_one_of_several_answers_in_token_ids_fails(
    request_to: Request, *, stream: bool
) -> None:
    def fails(turn: int) -> None:
        if turn == 1:
            raise EngineFault("the engine failed here")

    app = ScriptedApp(Script(before_chain=fails))
    async with app.lifespan():
        body = ids({"max_tokens": 5, "n": 2}, stream=stream)
        answer = await request_to(app, GENERATE, body).run()
        assert app.service.ledger.counts == {}
    assert answer.status == (200 if stream else 500)
    failed = answer.events[-1] if stream else answer.json
    assert failed["error"]["code"] == "engine_fault"
    assert b"[DONE]" not in answer.content


async def test_ids_take_what_the_context_leaves(request_to: Request) -> None:
    app = ScriptedApp(max_seq_len=64)
    async with app.lifespan():
        answer = await request_to(app, GENERATE, ids({})).run()
    assert len(answer.json["choices"][0]["token_ids"]) == 61


async def test_ids_end_with_the_token_that_stops_them(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        by_text = await request_to(app, GENERATE, ids({"stop": "ca"})).run()
        by_id = await request_to(app, GENERATE, ids({"stop_token_ids": [99]})).run()
    assert by_text.json["choices"][0]["token_ids"] == [97, 98, 99, 97]
    assert by_text.json["choices"][0]["stop_reason"] == "ca"
    assert by_id.json["choices"][0]["token_ids"] == [97, 98, 99]
    assert by_id.json["choices"][0]["stop_reason"] == 99


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_for_ids_that_fails(request_to: Request, *, stream: bool) -> None:
    def fails(_turn: int) -> None:
        raise EngineFault("the engine failed here")

    app = ScriptedApp(Script(before_chain=fails))
    async with app.lifespan():
        answer = await request_to(app, GENERATE, ids(stream=stream)).run()
    assert answer.status == (200 if stream else 500)
    failed = answer.events[-1] if stream else answer.json
    assert failed["error"]["code"] == "engine_fault"
    assert b"[DONE]" not in answer.content


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "token_ids", "invalid_value"),
        ({"token_ids": []}, "token_ids", "invalid_value"),
        ({"token_ids": [1 << 40]}, "token_ids[0]", "invalid_value"),
        (ids({"max_tokens": "5"}), "sampling_params.max_tokens", "invalid_value"),
        (ids({"min_tokens": 9, "max_tokens": 2}), "sampling_params.min_tokens", "invalid_value"),
        (ids({"stop_token_ids": [-1]}), "sampling_params.stop_token_ids[0]", "invalid_value"),
        (ids({"n": 0}), "sampling_params.n", "invalid_value"),
        (ids({"logit_bias": {"x": 1}}), "sampling_params.logit_bias", "unsupported_parameter"),
        (ids({"logprobs": 1}), "sampling_params.logprobs", "unsupported_parameter"),
        (ids({"bad_words": ["x"]}), "sampling_params.bad_words", "unsupported_parameter"),
        (ids(features={"mm_hashes": {}}), "features", "unsupported_parameter"),
        (ids(output_mode="text"), "output_mode", "unsupported_parameter"),
        (ids(model="other"), "model", "model_not_found"),
        (ids({"max_tokens": 9999}), "sampling_params.max_tokens", "context_length_exceeded"),
    ],
)
async def test_what_is_wrong_with_a_request_for_ids(
    request_to: Request, body: dict[str, Any], param: str, code: str
) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, GENERATE, body).run()
    assert (answer.json["error"]["param"], answer.json["error"]["code"]) == (param, code)
    assert answer.status == (404 if code == "model_not_found" else 400)


# --- tokenizing --------------------------------------------------------------------------------


async def test_a_text_to_ids_and_back(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        made = await request_to(app, "/tokenize", {"prompt": "abc"}).run()
        named = await request_to(
            app, "/tokenize", {"prompt": "ab", "return_token_strs": True}
        ).run()
        back = await request_to(app, "/detokenize", {"tokens": [97, 98, 99]}).run()
    assert made.json == {
        "count": 3,
        "max_model_len": 4096,
        "tokens": [97, 98, 99],
        "token_strs": None,
    }
    assert named.json["token_strs"] == ["a", "b"]
    assert back.json == {"prompt": "abc"}


async def test_the_ids_of_a_chat_are_those_it_is_computed_from(request_to: Request) -> None:
    app = ScriptedApp()
    chat = {"messages": [{"role": "user", "content": "abcd"}], "max_tokens": 2}
    async with app.lifespan():
        made = await request_to(app, "/tokenize", chat).run()
        answer = await request_to(app, "/v1/chat/completions", chat).run()
    assert made.json["tokens"] == [97, 98, 99, 100]
    assert made.json["count"] == answer.json["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"},
            "chat_template",
        ),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
async def test_what_is_wrong_with_a_request_to_tokenize(
    request_to: Request, path: str, body: dict[str, Any], param: str
) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, path, body).run()
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


# --- models ------------------------------------------------------------------------------------


async def test_one_model_is_as_in_the_list(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        listed = await request_to(app, "/v1/models").run()
        one = await request_to(app, "/v1/models/echo").run()
        other = await request_to(app, "/v1/models/some/other").run()
    assert one.json == listed.json["data"][0]
    answers.ModelList.model_validate(listed.json)
    assert (other.status, other.json["error"]["code"]) == (404, "model_not_found")


# --- one error object --------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("body", [{"model": "echo"}, None])
async def test_apis_that_are_not_served_say_so(
    request_to: Request, path: str, body: object
) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, path, body).run()
    assert (answer.status, answer.json["error"]["code"]) == (501, "not_implemented")
    assert "/v1/chat/completions" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"content-type": "text/plain"}, "Content-Type"),
        ({"content-type": "application/x-www-form-urlencoded"}, "Content-Type"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "Content-Encoding"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", GENERATE])
async def test_a_body_that_is_no_json_is_a_415(
    request_to: Request, path: str, headers: dict[str, str], param: str
) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, path, {"prompt": "a"}, headers=headers).run()
    error = answer.json["error"]
    assert (answer.status, error["code"], error["param"]) == (415, "unsupported_media_type", param)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "Application/JSON; charset=utf-8"},
        {"content-type": "application/vnd.api+json", "content-encoding": "identity"},
    ],
)
async def test_json_by_any_name_is_read(request_to: Request, headers: dict[str, str]) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, "/tokenize", {"prompt": "a"}, headers=headers).run()
    assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [1]}),
        (GENERATE, ids()),
        ("/v1/models/echo", None),
        ("/v1/responses", {}),
    ],
)
async def test_a_key_opens_the_further_paths(request_to: Request, path: str, body: object) -> None:
    app = ScriptedApp(api_keys=("sk-1", "sk-2"))
    async with app.lifespan():
        closed = await request_to(app, path, body).run()
        opened = await request_to(app, path, body, headers={"authorization": "Bearer sk-2"}).run()
    assert (closed.status, closed.json["error"]["code"]) == (401, "invalid_api_key")
    assert opened.status == (501 if path == "/v1/responses" else 200)


# --- the description ---------------------------------------------------------------------------


async def test_the_description_has_every_declared_field(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, "/openapi.json").run()
    described = answer.json
    assert described["openapi"] == "3.1.0"
    for kind, name in (("chat", "ChatRequest"), ("completion", "CompletionRequest")):
        properties = described["components"]["schemas"][name]["properties"]
        declared = {each.name for each in PARAMETERS if kind in each.endpoints}
        assert declared <= properties.keys()
        assert all(properties[field]["description"] for field in declared)


async def test_the_page_has_every_path_and_loads_nothing(request_to: Request) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, "/docs").run()
    page = answer.content.decode()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for path in describe_api(app.card)["paths"]:
        assert path in page
    assert "http" not in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 3},
            answers.ChatCompletion,
        ),
        ("/v1/completions", {"prompt": "abc"}, answers.Completion),
        ("/v1/completions", {"prompt": 5}, answers.ErrorAnswer),
        ("/tokenize", {"prompt": "abc"}, answers.TokenizeAnswer),
        ("/detokenize", {"tokens": [97]}, answers.DetokenizeAnswer),
    ],
)
async def test_answers_are_as_described(
    request_to: Request, path: str, body: dict[str, Any], model: type[BaseModel]
) -> None:
    app = ScriptedApp()
    async with app.lifespan():
        answer = await request_to(app, path, body).run()
    model.model_validate(answer.json)
