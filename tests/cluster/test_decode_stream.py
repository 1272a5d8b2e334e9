"""A decode node's stream, for every cut of its bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.cluster.decode_lines import (
    LINE_BYTES,
    DecodeDone,
    DecodeError,
    DecodeLines,
    DecodeTokens,
)
from tilert_stream.cluster.decode_stream import DecodeItem, DecodeStream
from tilert_stream.cluster.errors import DecodeFailed
from tilert_stream.events import Finished, Limits, TokenBatch, TokenLogprob
from tilert_stream.http.client import UpstreamClosed, UpstreamInvalid
from tilert_stream.stages.lines import EncodeLines
from tilert_stream.testing import make_scope

EOS = 2
FIRST = 72
CUTS = st.lists(st.integers(0, 300), max_size=12)


def line(**fields: Any) -> bytes:
    return orjson.dumps(fields) + b"\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def run(
    data: bytes, cuts: list[int] | None = None, limits: Limits | None = None
) -> tuple[list[int], Finished | None, list[TokenBatch]]:
    limits = limits or Limits(100, eos_ids=frozenset({EOS}))
    stream = DecodeStream(limits, FIRST, label="the decode node")
    items: list[DecodeItem] = []
    for piece in pieces(data, cuts or []):
        items += stream.feed(piece)
    items += stream.eof()
    batches = [item for item in items if isinstance(item, TokenBatch)]
    ends = [item for item in items if isinstance(item, Finished)]
    assert len(ends) == 1
    assert items[-1] is ends[0]
    assert stream.finished is ends[0]
    return [token for batch in batches for token in batch.ids], ends[0], batches


DONE = line(done=True, n=4, seq_len=9, finish_reason="length", timing_ms={"decode": 1.5})
WHOLE = line(t=[FIRST]) + line(t=[5, 6]) + line(t=[7]) + DONE


@given(cuts=CUTS)
def test_utf_13_the_same_for_every_cut(cuts: list[int]) -> None:
    ids, end, _ = run(WHOLE, cuts)
    assert (ids, end) == ([5, 6, 7], Finished("length"))


def test_utf_13_byte_by_byte() -> None:
    ids, end, batches = run(WHOLE, list(range(len(WHOLE))))
    assert (ids, end) == ([5, 6, 7], Finished("length"))
    assert [batch.ids for batch in batches] == [(5, 6), (7,)]


def test_one_read_is_one_batch_and_the_end_is_with_it() -> None:
    stream = DecodeStream(Limits(100), FIRST, label="d")
    assert stream.feed(WHOLE) == [TokenBatch((5, 6, 7)), Finished("length")]
    assert stream.node_ended
    assert stream.feed(b"anything") == []


@given(
    ids=st.lists(st.integers(3, 40), max_size=30),
    sizes=st.lists(st.integers(1, 5), min_size=30, max_size=30),
    max_tokens=st.integers(2, 40),
    stop_at=st.none() | st.integers(0, 30),
    told=st.booleans(),
    cuts=CUTS,
)
def test_met_12_exactly_what_the_limits_allow(
    ids: list[int],
    sizes: list[int],
    max_tokens: int,
    stop_at: int | None,
    told: bool,
    cuts: list[int],
) -> None:
    """However the ids come, and wherever the node believes the end to be."""
    if stop_at is not None:
        ids[stop_at:stop_at] = [EOS]
    limits = Limits(max_tokens, eos_ids=frozenset({EOS}))
    count, expected = limits.cut(ids, 1)
    data, rest = line(t=[FIRST]), list(ids)
    for size in sizes:
        data += line(t=rest[:size])
        del rest[:size]
    data += line(done=True, finish_reason="length", **({"n": len(ids) + 1} if told else {}))
    received, end, batches = run(data, cuts, limits)
    assert received == ids[:count]
    assert end == expected or (expected is None and end == Finished("length"))
    stops = [batch.ends_with_stop for batch in batches]
    assert not any(stops[:-1])
    assert not stops or stops[-1] == (end == Finished("stop"))


@pytest.mark.parametrize(
    ("limits", "end", "stop_reason"),
    [
        pytest.param(Limits(100, eos_ids=frozenset({EOS})), EOS, None, id="eos"),
        pytest.param(Limits(100, stop_ids=frozenset({7})), 7, 7, id="stop_token_ids"),
        pytest.param(Limits(100), 9, None, id="one that only the node knows"),
    ],
)
def test_a_stop_token_that_is_told_with_the_end(
    limits: Limits, end: int, stop_reason: int | None
) -> None:
    data = line(t=[FIRST, 5]) + line(done=True, n=2, finish_reason="stop", stop_token_id=end)
    _, finished, batches = run(data, limits=limits)
    assert finished == Finished("stop", stop_reason)
    assert batches == [TokenBatch((5, end), ends_with_stop=True)]


def test_a_stop_of_a_node_that_does_not_tell_the_token() -> None:
    ids, end, batches = run(line(t=[FIRST, 5]) + line(done=True, n=2, finish_reason="stop"))
    assert (ids, end) == ([5], Finished("stop"))
    assert not batches[0].ends_with_stop


def test_a_stop_token_before_min_tokens_does_not_end_it() -> None:
    limits = Limits(6, min_tokens=4, eos_ids=frozenset({EOS}))
    data = line(t=[FIRST]) + line(t=[5, EOS, 6, EOS, 7])
    assert run(data, limits=limits)[:2] == ([5, EOS, 6, EOS], Finished("stop"))


def test_the_router_ends_at_the_budget_itself() -> None:
    stream = DecodeStream(Limits(3), FIRST, label="d")
    assert stream.feed(line(t=[FIRST])) == []
    assert stream.feed(line(t=[5, 6, 7])) == [TokenBatch((5, 6)), Finished("length")]
    assert not stream.node_ended, "its done is still to come"
    assert stream.feed(line(t=[8])) == []
    assert stream.feed(line(done=True, finish_reason="length", n=9)) == []
    assert stream.node_ended
    assert stream.eof() == []


def test_a_node_without_room_for_more_than_the_first_token() -> None:
    assert run(line(done=True, n=1, finish_reason="length"))[:2] == ([], Finished("length"))


def test_logprobs() -> None:
    data = line(t=[FIRST, 5], lp=[[-1], [-0.5, [[5, -0.5], [6, -2]]]]) + line(t=[7], lp=[[-3.5]])
    _, _, batches = run(data + line(done=True, finish_reason="stop", n=3))
    assert batches[0].logprobs == (
        TokenLogprob(5, -0.5, ((5, -0.5), (6, -2.0))),
        TokenLogprob(7, -3.5),
    )


@given(cuts=CUTS)
def test_the_stop_token_has_its_logprob_too(cuts: list[int]) -> None:
    """Its id is in no line, and the first token's logprob is prefill's."""
    data = line(t=[FIRST]) + line(t=[5, 6], lp=[[-0.5, []], [-1, [[6, -1]]]])
    done = line(done=True, finish_reason="stop", n=3, stop_token_id=EOS, stop_lp=[-0.25, [[2, -1]]])
    ids, end, batches = run(data + done, cuts)
    told = [entry for batch in batches for entry in batch.logprobs or ()]
    assert (ids, end) == ([5, 6, EOS], Finished("stop"))
    assert told == [
        TokenLogprob(5, -0.5),
        TokenLogprob(6, -1.0, ((6, -1.0),)),
        TokenLogprob(EOS, -0.25, ((2, -1.0),)),
    ]


@given(cuts=CUTS)
def test_what_a_node_writes_a_router_reads(cuts: list[int]) -> None:
    told = (
        TokenLogprob(5, -0.5, ((5, -0.5), (9, -1.5))),
        TokenLogprob(6, -1.25),
        TokenLogprob(EOS, -0.125, ((7, -0.0625),)),
    )
    with make_scope() as scope:
        encode = EncodeLines({})(scope)
        items = (
            *encode.feed(TokenBatch((FIRST,))),
            *encode.feed(TokenBatch((5,), told[:1])),
            *encode.feed(TokenBatch((6, EOS), told[1:], ends_with_stop=True)),
            *encode.finish(Finished("stop")),
        )
    data = b"".join(item for item in items if isinstance(item, bytes))
    ids, _, batches = run(data, cuts)
    assert ids == [5, 6, EOS]
    assert tuple(entry for batch in batches for entry in batch.logprobs or ()) == told


@pytest.mark.parametrize(
    ("data", "error", "why"),
    [
        pytest.param(b"", UpstreamClosed, "without saying that it is done", id="nothing"),
        pytest.param(WHOLE[:30], UpstreamClosed, "without saying that it is done", id="cut"),
        pytest.param(line(t=[FIRST, 5]), UpstreamClosed, "without saying", id="no done"),
        pytest.param(DONE[:-1], UpstreamClosed, "without saying", id="half a done"),
        pytest.param(line(error="cuda"), DecodeFailed, "gave the request up: cuda", id="error"),
        pytest.param(
            line(error={"message": "x"}), DecodeFailed, 'up: {"message":"x"}', id="error object"
        ),
        pytest.param(
            line(t=[FIRST], error="x") + line(error="y"), DecodeFailed, "up: y", id="both"
        ),
        pytest.param(
            line(done=True, finish_reason="cancelled"), DecodeFailed, "cancelled", id="cancelled"
        ),
        pytest.param(line(done=True), DecodeFailed, "no reason", id="no reason"),
        pytest.param(
            line(t=[FIRST, 5]) + line(done=True, finish_reason="stop", n=3),
            UpstreamInvalid,
            "ends with n 3 after 2 tokens",
            id="a lost token",
        ),
        pytest.param(
            line(t=[73]), UpstreamInvalid, "begins with token 73; prefill has made 72", id="other"
        ),
        pytest.param(b"<html>\n", UpstreamInvalid, "a line is no JSON", id="garbage"),
        pytest.param(b"[]\n", UpstreamInvalid, "a line is a list", id="list"),
        pytest.param(line(t=5), UpstreamInvalid, "t is a number", id="t is no list"),
        pytest.param(line(t=[FIRST, -1]), UpstreamInvalid, "must be a token id", id="negative"),
        pytest.param(line(t=[FIRST, 1.5]), UpstreamInvalid, "must be a token id", id="fraction"),
        pytest.param(line(t=[FIRST], lp=[]), UpstreamInvalid, "lp has 0 items", id="no lp"),
        pytest.param(line(t=[FIRST], lp=[["x"]]), UpstreamInvalid, "no number", id="odd lp"),
        pytest.param(
            b'{"t":[' + b"1," * LINE_BYTES, UpstreamInvalid, "a line is over", id="endless line"
        ),
        pytest.param(
            b'{"t":[' + b"1," * LINE_BYTES + b"1]}\n", UpstreamInvalid, "is over", id="long line"
        ),
    ],
)
def test_err_02_a_failure_is_never_a_finish_reason(
    data: bytes, error: type[Exception], why: str
) -> None:
    _, end, _ = run(data)
    assert end is not None
    assert end.reason == "error"
    assert isinstance(end.error, error)
    assert why in end.error.message
    assert end.error.status == 502


@pytest.mark.parametrize("count", [1, 5])
def test_err_01_death_after_some_tokens(count: int) -> None:
    data = line(t=[FIRST]) + b"".join(line(t=[token]) for token in range(3, 3 + count))
    ids, end, _ = run(data)
    assert ids == list(range(3, 3 + count))
    assert end is not None
    assert isinstance(end.error, UpstreamClosed)


def test_err_02_an_error_behind_tokens() -> None:
    ids, end, _ = run(line(t=[FIRST, 5, 6]) + line(error="device lost"))
    assert ids == [5, 6]
    assert end is not None
    assert end.reason == "error"


def test_empty_lines_and_unknown_objects_are_ignored() -> None:
    data = b"\n\r\n" + line(ping=1) + line(t=[FIRST, 5]) + line(done=False) + b"  \n"
    assert run(data + line(done=True, finish_reason="length"))[:2] == ([5], Finished("length"))


def test_lines_end_at_line_feeds_only() -> None:
    text = {"done": True, "finish_reason": "x\u2028y\u0085z"}
    (read,) = DecodeLines().feed(orjson.dumps(text) + b"\r\n")
    assert read == DecodeDone("x\u2028y\u0085z")


def test_nothing_is_read_behind_the_end() -> None:
    lines = DecodeLines()
    assert lines.feed(line(t=[1]) + line(error="x") + b"garbage\n") == [
        DecodeTokens((1,)),
        DecodeError("x"),
    ]
    assert lines.feed(b"more garbage\n") == []


PIECES = [line(t=[FIRST]), line(t=[4]), line(done=True), DONE, b"\n", b"{}", b"[", b"\xff", b'"']


@given(parts=st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=12), cuts=CUTS)
def test_any_bytes_end_in_one_end(parts: list[bytes], cuts: list[int]) -> None:
    ids, end, _ = run(b"".join(parts), cuts)
    assert end is not None
    assert end.error is None or end.error.status == 502
    assert all(token >= 0 for token in ids)


LINES = st.lists(
    st.sampled_from(
        [
            b'{"t":[1]}',
            b'{"t": [1, 22]}',
            b'{"t":[0,999999999]}',
            b'{"t":[]}',
            b'{"t":[01]}',
            b'{"t":[-1]}',
            b'{"t":[4294967296]}',
            b'{"t":[1],"lp":[[0]]}',
            b'{"t":[1.0]}',
            b'{"done":true,"n":1}',
            b"",
        ]
    ),
    max_size=4,
)


@given(LINES, st.sampled_from([b"", b"\r\n", b"x", b'{"t":']))
def test_lines_read_at_once_and_one_by_one(lines: list[bytes], rest: bytes) -> None:
    whole = b"".join(line + b"\n" for line in lines) + rest
    # A line that is held back from the read before is read on its own.
    cuts = [place for place, byte in enumerate(whole) if byte == ord("[")]
    assert read_lines([whole]) == read_lines(pieces(whole, cuts))


def read_lines(parts: list[bytes]) -> tuple[list[object], bool]:
    """The ids, the other lines, and the fault if there is one."""
    reader, read = DecodeLines(), list[object]()
    try:
        for part in parts:
            for found in reader.feed(part):
                if isinstance(found, DecodeTokens) and found.logprobs is None:
                    read += found.ids
                else:
                    read.append(found)
    except ValueError as error:
        # Which of the lines before it have been given depends on the reads.
        return [str(error)], reader.ended
    return read, reader.ended


@pytest.mark.parametrize(
    ("behind", "node_ended"),
    [
        (b"", False),
        (DONE, True),
        (DONE[:-9], False),
        (line(error="late"), True),
        (b"no json\n", False),
        (line(t=[8]) + line(done=True, n=99, finish_reason="length"), True),
    ],
)
def test_the_budgets_end_waits_for_nothing_that_comes_with_it(
    behind: bytes, node_ended: bool
) -> None:
    stream = DecodeStream(Limits(4), FIRST, label="the decode node")
    assert stream.feed(line(t=[FIRST])) == []
    assert stream.feed(line(t=[5])) == [TokenBatch((5,))]
    assert stream.feed(line(t=[6, 7]) + behind) == [TokenBatch((6, 7)), Finished("length")]
    assert stream.node_ended is node_ended
    assert stream.finished == Finished("length")


def test_an_end_of_the_node_in_pieces_behind_the_budgets() -> None:
    stream = DecodeStream(Limits(4), FIRST, label="the decode node")
    stream.feed(line(t=[FIRST]))
    stream.feed(line(t=[5, 6, 7]) + DONE[:7])
    assert stream.finished == Finished("length")
    assert not stream.node_ended
    assert stream.feed(DONE[7:20]) == stream.feed(DONE[20:]) == []
    assert stream.node_ended
