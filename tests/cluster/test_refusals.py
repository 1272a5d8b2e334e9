"""What a node's refusal becomes for our client."""

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.cluster.refusals import read_words, refusal_of, retry_after
from tilert_stream.errors import TilertStreamError


def refuse(status: int, body: Any = None, after: float | None = None) -> TilertStreamError:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return refusal_of(status, raw, label="the prefill node", after=after)


def openai(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, **fields}}


def test_pd_09_words_and_field_of_a_400_are_kept() -> None:
    error = refuse(400, openai("top_k must be -1 or more", param="top_k", code=400))
    assert error.status == 400
    assert error.type == "invalid_request_error"
    assert error.message == "top_k must be -1 or more"
    assert error.param == "top_k"


@pytest.mark.parametrize(
    ("status", "body", "ours", "code"),
    [
        (400, openai("bad"), 400, "invalid_value"),
        (400, openai("long", code="context_length_exceeded"), 400, "context_length_exceeded"),
        (401, openai("no key"), 502, "upstream_refused"),
        (403, openai("no key"), 502, "upstream_refused"),
        (404, openai("The model `x` does not exist.", param="model"), 404, "model_not_found"),
        (404, openai("gone", code="model_not_found"), 404, "model_not_found"),
        (404, {"detail": "Not Found"}, 502, "upstream_refused"),
        (405, {"detail": "Method Not Allowed"}, 502, "upstream_refused"),
        (408, openai("slow"), 408, "request_timeout"),
        (413, openai("big"), 413, "body_too_large"),
        (418, b"", 502, "upstream_refused"),
        (422, openai("url"), 422, "unprocessable"),
        (429, openai("busy"), 429, "slots_busy"),
        (500, openai("boom"), 502, "upstream_failed"),
        (502, b"<html>", 502, "upstream_failed"),
        (503, openai("full"), 503, "not_ready"),
        (504, openai("late"), 504, "upstream_timeout"),
        (204, b"", 502, "upstream_refused"),
        (302, b"", 502, "upstream_refused"),
    ],
)
def test_pd_10_each_status(status: int, body: Any, ours: int, code: str) -> None:
    error = refuse(status, body)
    assert (error.status, error.code) == (ours, code)


@pytest.mark.parametrize("status", [404, 405, 500])
def test_pd_10_what_is_the_operators_is_logged_and_not_told(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        error = refuse(status, {"error": "internal address 10.0.0.7"})
    assert "10.0.0.7" not in error.message
    assert f"status {status}" in error.message
    assert f"the prefill node answered {status}: internal address" in caplog.text


@pytest.mark.parametrize("status", [401, 403])
def test_pd_25_a_key_that_is_refused_is_shown_to_nobody(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        error = refuse(status, openai("Incorrect API key provided: sk-secret"))
    assert f"the prefill node answered {status}: look at its key" in caplog.text
    assert "sk-secret" not in caplog.text + error.message


@pytest.mark.parametrize("status", [429, 503])
def test_pd_10_retry_after_is_kept(status: int) -> None:
    assert refuse(status, openai("busy"), 7.0).retry_after == 7
    assert refuse(status, openai("busy")).retry_after == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({b"retry-after": "7"}, 7),
        ({b"retry-after": "7", b"retry-after-ms": "1500"}, 1.5),
        ({b"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({b"retry-after": "-1"}, None),
        ({b"retry-after": "inf"}, None),
        ({b"retry-after": "nan"}, None),
        ({b"retry-after-ms": "soon", b"retry-after": "2"}, 2),
    ],
)
def test_the_time_to_wait(headers: dict[bytes, str], seconds: float | None) -> None:
    assert retry_after(headers.get) == seconds


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":"busy","current_rid":"a"}', "busy"),
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"object":"error","message":"flat","type":"x","code":400}', "flat"),
        (b'{"error":null}', ""),
        (b"[]", ""),
        (b"nonsense", ""),
        (b'{"error":"' + b"x" * 5000 + b'"}', "x" * 2000),
    ],
)
def test_a_nodes_words(body: bytes, message: str) -> None:
    assert read_words(body).message == message


def test_the_code_of_flat_words() -> None:
    words = read_words(b'{"error":"gone","code":"kv_grant_gone","rid":"a"}')
    assert (words.message, words.code) == ("gone", "kv_grant_gone")
    assert read_words(b'{"error":"gone","code":410}').code is None


@given(
    status=st.integers(100, 599),
    body=st.binary(max_size=50)
    | st.dictionaries(
        st.sampled_from(["error", "message", "param", "code"]),
        st.none() | st.text() | st.lists(st.text()),
    ).map(orjson.dumps),
)
def test_pd_10_whatever_a_node_says_is_an_error_of_ours(status: int, body: bytes) -> None:
    error = refusal_of(status, body, label="x")
    assert 400 <= error.status < 600
    assert error.message
