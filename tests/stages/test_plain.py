"""The whole response, and that it says what the stream says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import openai
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from tilert_stream.errors import EngineFault
from tilert_stream.events import Finished, Limits, PromptUsage, TextDelta, TokenBatch
from tilert_stream.fusion import fuse
from tilert_stream.link import make_link
from tilert_stream.model.tokenizer import TextTokenizer
from tilert_stream.openai.envelope import Endpoint, Envelope
from tilert_stream.stages.detokenize import Detokenize
from tilert_stream.stages.plain import EncodeJSON
from tilert_stream.stages.sse import EncodeSSE
from tilert_stream.stages.stop import StopStrings
from tilert_stream.testing import assert_contract, make_request, make_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS: list[Endpoint] = ["chat", "completion"]
EOS = 256
PROMPT = PromptUsage(3)


def byte_fallback() -> TextTokenizer:
    """Ids 0–255 are bytes, 256 is the end, 257 a word."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"</s>": EOS, "▁the": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    # The stub of tokenizers leaves the list without an element type.
    tokenizer.add_special_tokens(["</s>"])  # pyright: ignore[reportUnknownMemberType]
    return TextTokenizer(tokenizer)


DETOKENIZE = Detokenize(byte_fallback())


def encode(
    kind: Endpoint,
    deltas: Sequence[TextDelta],
    outcome: Finished,
    prompt: PromptUsage = PROMPT,
) -> list[bytes]:
    with make_scope() as scope:
        encoder = EncodeJSON(Envelope("feed", kind, "m", created=1764640000))(scope)
        scope.usage = prompt
        for delta in deltas:
            assert list(encoder.feed(delta)) == []
        return [item for item in encoder.finish(outcome) if isinstance(item, bytes)]


def answer(
    batches: Sequence[TokenBatch],
    outcome: Finished,
    *,
    kind: Endpoint = "chat",
    stream: bool,
    stop: tuple[str, ...] = (),
) -> tuple[str, Any, Any]:
    """Text, usage and the choice's end, out of the real stages behind the mailbox."""
    shape = Envelope("feed", kind, "m", stream=stream, include_usage=stream, created=1)
    encoder = EncodeSSE(shape) if stream else EncodeJSON(shape)
    links = [make_link(stage) for stage in (DETOKENIZE, StopStrings(), encoder)]
    with make_scope(make_request(stop=stop)) as scope:
        chain, _ = fuse(links, scope)
        items = [item for item in chain.run([*batches, outcome]) if isinstance(item, bytes)]
    if not stream:
        (whole,) = [orjson.loads(item) for item in items]
        (choice,) = whole["choices"]
        text = choice.pop("message")["content"] if kind == "chat" else choice.pop("text")
        choice.pop("logprobs")
        return text, whole["usage"], choice
    events = b"".join(items).removesuffix(b"data: [DONE]\n\n").split(b"\n\n")[:-1]
    chunks = [orjson.loads(event.removeprefix(b"data: ")) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice.pop("delta", choice) for choice in choices]
    text = "".join(delta.pop("content" if kind == "chat" else "text", "") for delta in deltas)
    choices[-1].pop("logprobs", None)
    return text, chunks[-1]["usage"], choices[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_strict_sdk_reads_it(kind: Endpoint) -> None:
    deltas = [TextDelta("Hel", (1,), (3,)), TextDelta("lo", (2, 3), (1, 2))]
    (body,) = encode(kind, deltas, Finished("length"))
    client = openai.OpenAI(
        api_key="k",
        base_url="http://server/v1",
        http_client=httpx2.Client(
            transport=httpx2.MockTransport(lambda _: httpx2.Response(200, content=body))
        ),
        _strict_response_validation=True,
    )
    with client:
        if kind == "chat":
            chat = client.chat.completions.create(model="m", messages=[])
            assert (chat.id, chat.created, chat.model) == ("chatcmpl-feed", 1764640000, "m")
            assert chat.choices[0].message.content == "Hello"
            assert chat.choices[0].finish_reason == "length"
            usage = chat.usage
        else:
            completion = client.completions.create(model="m", prompt="")
            assert (completion.id, completion.object) == ("cmpl-feed", "text_completion")
            assert completion.choices[0].text == "Hello"
            assert completion.choices[0].finish_reason == "length"
            usage = completion.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 3, 6)


def test_met_09_whole_chat_response() -> None:
    deltas = [TextDelta("Hi", (1,), (2,)), TextDelta("", (EOS,), (0,))]
    (body,) = encode("chat", deltas, Finished("stop"))
    assert orjson.loads(body) == {
        "id": "chatcmpl-feed",
        "object": "chat.completion",
        "created": 1764640000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


@pytest.mark.parametrize("stream", [False, True])
def test_met_09_the_prompt_is_counted_here_where_prefill_does_not(stream: bool) -> None:
    _, usage, _ = answer([TokenBatch((72,))], Finished("length"), stream=stream)
    assert usage == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


@pytest.mark.parametrize("cached", [0, 6144])
def test_met_11_cached_tokens(cached: int) -> None:
    (body,) = encode("chat", [], Finished("stop"), PromptUsage(8193, cached))
    assert orjson.loads(body)["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}


@pytest.mark.parametrize("stop_reason", ["END", 42])
def test_stop_reason(stop_reason: int | str) -> None:
    (body,) = encode("completion", [], Finished("stop", stop_reason))
    assert orjson.loads(body)["choices"][0]["stop_reason"] == stop_reason


@pytest.mark.parametrize("outcome", [Finished.failed(EngineFault("no")), Finished("cancelled")])
def test_err_02_no_body_for_a_request_that_failed(outcome: Finished) -> None:
    assert encode("chat", [TextDelta("Hi", (1,), (2,))], outcome) == []


@pytest.mark.parametrize("kind", KINDS)
def test_contract(kind: Endpoint) -> None:
    assert_contract(EncodeJSON(Envelope("feed", kind, "m", created=1)))


@pytest.mark.parametrize("stream", [False, True])
def test_utf_02_a_cut_character_comes_out_alike(stream: bool) -> None:
    batches = [TokenBatch((0x41,)), TokenBatch((0xF0, 0x9F))]
    text, usage, end = answer(batches, Finished("length"), stream=stream)
    assert text == "A�"
    assert usage["completion_tokens"] == 3
    assert end["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_met_13_a_character_of_four_tokens(stream: bool) -> None:
    batches = [TokenBatch((byte,)) for byte in "😀".encode()]
    text, usage, end = answer(batches, Finished("length"), stream=stream)
    assert (text, usage["completion_tokens"]) == ("😀", 4)
    assert end["finish_reason"] == "length"


TOKENS = st.lists(
    st.sampled_from([*"aé😀\u2028".encode(), *b"ENDn\x85", 0xC2, 0xFF, 257]),
    min_size=1,
    max_size=24,
)
STOPS = st.lists(st.sampled_from(["END", "N", "aa", "é", " the", "\ufffd"]), max_size=2).map(tuple)


def cut(tokens: Sequence[int], borders: set[int]) -> list[TokenBatch]:
    """``tokens`` as an engine would hand them on, its end being the model's own stop token."""
    batches: list[TokenBatch] = []
    pending: list[int] = []
    for index, token in enumerate(tokens):
        pending.append(token)
        if index in borders or index == len(tokens) - 1:
            batches.append(TokenBatch(tuple(pending), ends_with_stop=pending[-1] == EOS))
            pending = []
    return batches


@settings(deadline=None, max_examples=300)
@given(
    tokens=TOKENS,
    ends=st.booleans(),
    borders=st.sets(st.integers(0, 24)),
    stop=STOPS,
    kind=st.sampled_from(KINDS),
)
def test_inv_1_streamed_and_whole_answers_are_the_same(
    tokens: list[int],
    ends: bool,
    borders: set[int],
    stop: tuple[str, ...],
    kind: Endpoint,
) -> None:
    if ends:
        tokens = [*tokens, EOS]
    _, outcome = Limits(len(tokens), eos_ids=frozenset({EOS})).cut(tokens, 0)
    assert outcome is not None
    whole = answer(cut(tokens, set()), outcome, kind=kind, stream=False, stop=stop)
    assert answer(cut(tokens, borders), outcome, kind=kind, stream=True, stop=stop) == whole
    assert answer(cut(tokens, borders), outcome, kind=kind, stream=False, stop=stop) == whole
