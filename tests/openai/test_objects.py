"""Model list and error object, as the official SDK reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import orjson
import pytest

from tilert_stream.errors import (
    AuthenticationFailed,
    Busy,
    ContextLengthExceeded,
    ModelNotFound,
    NotReady,
    TilertStreamError,
    UnsupportedParameter,
)
from tilert_stream.events import PromptUsage
from tilert_stream.openai.errors import error_body, error_headers, error_object
from tilert_stream.openai.objects import model_list, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_stream.model.card import ModelCard


def sdk(answer: Callable[[httpx2.Request], httpx2.Response]) -> openai.OpenAI:
    return openai.OpenAI(
        api_key="k",
        base_url="http://server/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(answer)),
        _strict_response_validation=True,
    )


def test_every_name_is_a_model(card: ModelCard) -> None:
    body = orjson.dumps(model_list([card, replace(card, names=("other",), max_seq_len=5)]))
    with sdk(lambda _: httpx2.Response(200, content=body)) as client:
        models = list(client.models.list())
    assert [model.id for model in models] == ["byte", "byte-alias", "other"]
    assert models[0].created == 1764640000
    assert models[0].owned_by == "tilert_stream"
    assert [(model.model_extra or {})["max_model_len"] for model in models] == [1000, 1000, 5]


@pytest.mark.parametrize(
    ("reported", "seen"), [(0, 0), (6144, 6144), (8193, 8193), (9000, 8193), (-1, 0)]
)
def test_met_11_cached_tokens_are_prefills_own_and_within_the_prompt(
    reported: int, seen: int
) -> None:
    counts: dict[str, Any] = usage(PromptUsage(8193, reported), 2)
    assert counts["prompt_tokens_details"] == {"cached_tokens": seen}


def test_met_11_cached_tokens_are_absent_where_prefill_does_not_report_them() -> None:
    assert usage(PromptUsage(3), 2) == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
    }


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (UnsupportedParameter("no n", param="n"), openai.BadRequestError),
        (ContextLengthExceeded("too long", param="messages"), openai.BadRequestError),
        (AuthenticationFailed("wrong key"), openai.AuthenticationError),
        (ModelNotFound("no model", param="model"), openai.NotFoundError),
        (Busy("no slot", retry_after=2), openai.RateLimitError),
        (NotReady("starting"), openai.InternalServerError),
    ],
)
def test_err_03_http_body_is_the_nested_object(
    error: TilertStreamError, raised: type[openai.APIStatusError]
) -> None:
    answer = httpx2.Response(error.status, headers=error_headers(error), content=error_body(error))
    with sdk(lambda _: answer) as client, pytest.raises(raised) as caught:
        client.models.list()
    seen = caught.value
    assert error.message in seen.message
    assert (seen.type, seen.param, seen.code) == (error.type, error.param, error.code)
    assert orjson.loads(error_body(error)) == error_object(error)
    assert set(error_object(error)) == {"error"}


@pytest.mark.parametrize(
    ("retry_after", "seconds", "milliseconds"),
    [
        (0, b"1", b"1"),
        (0.25, b"1", b"250"),
        (1.5, b"2", b"1500"),
        (120, b"120", b"120000"),
        (3600, b"120", b"120000"),
        (-3, b"1", b"1"),
    ],
)
def test_retry_after(retry_after: float, seconds: bytes, milliseconds: bytes) -> None:
    headers = dict(error_headers(Busy("no slot", retry_after=retry_after)))
    assert headers[b"retry-after"] == seconds
    assert headers[b"retry-after-ms"] == milliseconds


def test_headers_of_an_error_that_no_retry_helps() -> None:
    assert error_headers(UnsupportedParameter("no n")) == [(b"content-type", b"application/json")]


def test_401_names_its_scheme() -> None:
    assert (b"www-authenticate", b"Bearer") in error_headers(AuthenticationFailed("no key"))
