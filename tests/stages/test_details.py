"""INV-1 for what is told of tokens: however an answer is cut, streamed or not, it is the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizers import families
from tilert_stream.errors import EngineFault
from tilert_stream.events import Finished, OutputFormat, TokenBatch, TokenLogprob
from tilert_stream.fusion import fuse
from tilert_stream.link import make_link
from tilert_stream.openai.envelope import Envelope
from tilert_stream.openai.logprobs import text_offsets
from tilert_stream.openai.token_names import TokenNames
from tilert_stream.parsers.hermes import HERMES
from tilert_stream.stages.detokenize import Detokenize
from tilert_stream.stages.parse import ParseOutput
from tilert_stream.stages.plain import EncodeJSON
from tilert_stream.stages.sse import EncodeSSE
from tilert_stream.stages.stop import StopStrings
from tilert_stream.testing import make_request, make_scope

BYTE = families.tokenizer("BYTE")
NAMES = TokenNames(BYTE)
ANSWERS = [
    "a river",
    "<think>\nhm, salt?\n</think>\n\nno",
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "wet 😀 STOP and more",
    "",
]
CUTS = st.lists(st.integers(0, 80), max_size=10)


def batches(text: str, cuts: list[int]) -> list[TokenBatch]:
    ids = (*text.encode(), families.EOS)
    told = tuple(
        TokenLogprob(token, -0.25 * (place + 1), ((token, -0.25), (65, -1.5)))
        for place, token in enumerate(ids)
    )
    places = [0, 1, *sorted({min(max(cut, 1), len(ids)) for cut in cuts}), len(ids)]
    return [
        TokenBatch(ids[a:b], told[a:b], ends_with_stop=b == len(ids))
        for a, b in pairwise(places)
        if a < b
    ]


def say(
    text: str, cuts: list[int], kind: Literal["chat", "completion"], *, stream: bool
) -> dict[str, Any]:
    """What a client has put together at the end."""
    envelope = Envelope(
        "feed", kind, "m", stream, include_usage=True, logprobs=True, token_ids=True
    )
    output = OutputFormat() if kind == "chat" else None
    request = make_request(stop=("STOP",), output=output)
    encode = (EncodeSSE if stream else EncodeJSON)(envelope, names=NAMES)
    stages = [Detokenize(BYTE), StopStrings(), ParseOutput(HERMES), encode]
    with make_scope(request) as scope:
        head, _ = fuse([make_link(stage, None) for stage in stages], scope)
        sent = b"".join(head.run([*batches(text, cuts), Finished("stop")]))  # type: ignore[arg-type]  # bytes
    if not stream:
        bodies = [orjson.loads(sent)]
    else:
        events = sent.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        bodies = [orjson.loads(event[6:]) for event in events[:-2]]
    whole: dict[str, Any] = {"text": "", "reasoning": "", "ids": [], "logprobs": {}, "prompt": []}
    for body in bodies:
        whole["usage"] = body.get("usage")
        whole["prompt"] += body.get("prompt_token_ids", [])
        for choice in body["choices"]:
            part = choice.get("delta", choice.get("message", choice))
            whole["text"] += part.get("content", part.get("text")) or ""
            whole["reasoning"] += part.get("reasoning") or ""
            whole["ids"] += choice.get("token_ids", [])
            whole["prompt"] += choice.get("prompt_token_ids", [])
            logprobs: dict[str, list[Any]] = choice.get("logprobs") or {}
            for name, values in logprobs.items():
                whole["logprobs"].setdefault(name, []).extend(values)
            whole["end"] = choice["finish_reason"], choice.get("stop_reason")
    return whole


@given(text=st.sampled_from(ANSWERS), cuts=CUTS, kind=st.sampled_from(["chat", "completion"]))
def test_pd_16_entries_are_as_many_as_tokens_however_it_is_cut(
    text: str, cuts: list[int], kind: Literal["chat", "completion"]
) -> None:
    plain, streamed = (say(text, cuts, kind, stream=stream) for stream in (False, True))
    assert streamed == plain == say(text, [], kind, stream=False)
    count = plain["usage"]["completion_tokens"]
    stop = text.find("STOP")
    assert count == (stop + len("😀".encode()) - 1 + 4 if stop >= 0 else len(text.encode()) + 1)
    assert len(plain["ids"]) == count
    assert plain["ids"] == [*text.encode(), families.EOS][:count]
    assert plain["prompt"] == list(make_request().prompt_ids)
    if kind == "chat":
        entries = plain["logprobs"]["content"]
        assert [entry["logprob"] for entry in entries] == [-0.25 * (n + 1) for n in range(count)]
        spelled = [byte for entry in entries for byte in entry["bytes"]]
        assert bytes(spelled).startswith(text.encode()[:count])
    else:
        lists = plain["logprobs"]
        assert {len(values) for values in lists.values()} == {count}
        assert lists["text_offset"][0] == 0
        assert lists["text_offset"] == sorted(lists["text_offset"])


def test_an_engine_that_tells_none_fails_the_request() -> None:
    """No log-probability is invented, and none is left out."""
    envelope = Envelope("feed", "chat", "m", logprobs=True)
    with make_scope() as scope:
        encode = EncodeJSON(envelope, names=NAMES)(scope)
        detokenize = Detokenize(BYTE)(scope)
        (delta,) = detokenize.feed(TokenBatch((97,)))
        assert not isinstance(delta, Finished)
        with pytest.raises(EngineFault, match="0 log-probabilities of 1 tokens"):
            encode.feed(delta)


@pytest.mark.parametrize(
    ("ids", "text", "offsets"),
    [
        ([*b"ab"], "ab", [0, 1]),
        ([families.EOS, *b"ab"], "ab", [0, 0, 1]),
        ([*"a😀b".encode()], "a😀b", [0, 1, 1, 1, 1, 2]),
        ([*b" ab"], "ab", [0, 0, 1]),
        ([*b"AB"], "ab", [0, 0]),
    ],
)
def test_where_the_tokens_of_a_prompt_begin(ids: list[int], text: str, offsets: list[int]) -> None:
    """Special tokens that the tokenizer adds have no text, nor have those that it has changed."""
    assert text_offsets(ids, text, NAMES) == offsets
