from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilert_stream.errors import InvalidRequest
from tilert_stream.events import Finished, Limits, TextDelta, TokenLogprob
from tilert_stream.fusion import PassThrough
from tilert_stream.stages.stop import StopMatcher, StopStrings
from tilert_stream.testing import assert_contract, make_request, make_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH = Finished("length")


def one_token_deltas(pieces: Sequence[str]) -> list[TextDelta]:
    return [TextDelta(piece, (n,), (len(piece),)) for n, piece in enumerate(pieces)]


def run(
    matcher: StopMatcher, deltas: Sequence[TextDelta]
) -> tuple[list[list[TextDelta]], Finished | None]:
    """What comes out for each delta, the flush last, and how the matcher ended it."""
    out: list[list[TextDelta]] = []
    for delta in (*deltas, None):
        results = matcher.finish(LENGTH) if delta is None else matcher.feed(delta)
        out.append([])
        for result in results:
            if isinstance(result, Finished):
                return out, result
            out[-1].append(result)
    return out, None


def texts(
    stop: Sequence[str], pieces: Sequence[str], *, include_stop: bool = False, min_tokens: int = 0
) -> tuple[list[str], Finished | None]:
    matcher = StopMatcher(stop, include_stop=include_stop, min_tokens=min_tokens)
    out, end = run(matcher, one_token_deltas(pieces))
    return ["".join(delta.text for delta in step) for step in out], end


def test_stp_01_the_beginning_of_a_stop_string_is_not_sent() -> None:
    stop = ["DEFGHIJ"]
    matcher = StopMatcher(stop)
    out, end = run(matcher, one_token_deltas([" DEF", "G", "HI", "J", "K"]))
    assert out == [
        [TextDelta(" ")],
        [],
        [],
        [TextDelta("", (0, 1, 2, 3), (0, 0, 0, 0))],
    ]
    assert end == Finished("stop", stop_reason="DEFGHIJ")


def test_stp_02_a_match_across_tokens() -> None:
    end = Finished("stop", stop_reason="beta gamma")
    assert texts(["beta gamma"], ["a ", "beta", " gamma", "x"]) == (["a ", "", ""], end)
    assert texts(["\n\n"], ["a\n", "\n"]) == (["a", ""], Finished("stop", stop_reason="\n\n"))
    # The border of the first token and decode, and a match inside one batch.
    both = TextDelta("b\n\nc", (1, 2, 3), (2, 3, 4))
    out, end_ = run(StopMatcher(["\n\n"]), [TextDelta("a", (0,), (1,)), both])
    assert out == [[TextDelta("a", (0,), (1,))], [TextDelta("b", (1, 2), (1, 1))]]
    assert end_ == Finished("stop", stop_reason="\n\n")


def test_stp_04_only_a_beginning_of_a_stop_string_is_held() -> None:
    stop = ["<" + "x" * 39]
    pieces = ["one ", "two", " <x", "x>", " three <"]
    assert texts(stop, pieces) == (["one ", "two", " ", "<xx>", " three ", "<"], None)


def test_stp_05_nothing_is_held_when_the_stop_string_stays() -> None:
    out = texts(["STOP"], ["hi ST", "OP and"], include_stop=True)
    assert out == (["hi ST", "OP"], Finished("stop", stop_reason="STOP"))


def test_stp_07_what_was_held_comes_out_at_the_end() -> None:
    assert texts(["STOP"], ["alpha S"]) == (["alpha ", "S"], None)
    assert run(StopMatcher(["STOP"]), one_token_deltas(["alpha S"]))[0] == [
        [TextDelta("alpha ")],
        [TextDelta("S", (0,), (1,))],
    ]


def test_stp_08_the_first_token_is_a_stop_string() -> None:
    out, end = run(StopMatcher(["STOP"]), one_token_deltas(["STOP", "more"]))
    assert out == [[TextDelta("", (0,), (0,))]]
    assert end == Finished("stop", stop_reason="STOP")


def test_stp_09_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="stop has an empty string") as caught:
        StopMatcher(["", "E"])
    assert caught.value.param == "stop"


def test_stp_09_two_hundred_stop_strings() -> None:
    stop = [f"{n:03d}!" for n in range(200)]
    assert texts(stop, ["29", "1", "7", "7", "!"]) == (
        ["29", "", "", "", ""],
        Finished("stop", stop_reason="177!"),
    )


def test_the_stop_string_that_is_complete_first_wins_and_then_the_longest() -> None:
    assert texts(["abcd", "bc"], ["xabcd"]) == (["xa"], Finished("stop", stop_reason="bc"))
    assert texts(["c", "abc", "bc"], ["xabc"]) == (["x"], Finished("stop", stop_reason="abc"))
    assert texts(["ab", "abc"], ["ab", "c"]) == ([""], Finished("stop", stop_reason="ab"))


def test_a_shorter_beginning_is_kept_when_a_longer_one_breaks() -> None:
    assert texts(["aab"], ["a", "a", "a", "b"]) == (
        ["", "", "a", ""],
        Finished("stop", stop_reason="aab"),
    )
    assert texts(["abac", "ba"], ["ab", "x"]) == (["", "abx", ""], None)


def test_early_stop_strings_stay_in_the_text() -> None:
    pieces = ["S", "a", "S", "b"]
    assert texts(["S"], pieces, min_tokens=2) == (
        ["S", "a", ""],
        Finished("stop", stop_reason="S"),
    )
    # The token that completes it decides, not the one that begins it.
    assert texts(["aS"], pieces, min_tokens=2)[1] == Finished("stop", stop_reason="aS")
    assert texts(["S"], pieces, min_tokens=3) == (["S", "a", "S", "b", ""], None)
    batch = TextDelta("SaSb", (0, 1, 2, 3), (1, 2, 3, 4))
    out, end = run(StopMatcher(["S"], min_tokens=2), [batch])
    assert out == [[TextDelta("Sa", (0, 1, 2), (1, 2, 2))]]
    assert end == Finished("stop", stop_reason="S")


def test_logprobs_travel_with_their_tokens() -> None:
    logprobs = [TokenLogprob(n, -float(n)) for n in range(4)]
    pieces = ["a ST", "O", "x", "STOP"]
    deltas = [
        TextDelta(piece, (n,), (len(piece),), (logprobs[n],)) for n, piece in enumerate(pieces)
    ]
    out, _ = run(StopMatcher(["STOP"]), deltas)
    assert out == [
        [TextDelta("a ")],
        [],
        [TextDelta("STOx", (0, 1, 2), (2, 3, 4), tuple(logprobs[:3]))],
        [TextDelta("", (3,), (0,), (logprobs[3],))],
    ]


def test_tokens_without_text_pass_unless_text_before_them_is_held() -> None:
    pieces = ["", "S", "", "a", ""]
    out, _ = run(StopMatcher(["ST"]), one_token_deltas(pieces))
    assert [[delta.ids for delta in step] for step in out] == [
        [(0,)],
        [],
        [],
        [(1, 2, 3)],
        [(4,)],
        [],
    ]


def test_text_without_tokens_can_complete_a_stop_string() -> None:
    """The detokenizer's flush."""
    out, end = run(StopMatcher(["a\ufffd"]), [TextDelta("xa", (0,), (2,)), TextDelta("\ufffd")])
    assert out == [[TextDelta("x")], [TextDelta("", (0,), (0,))]]
    assert end == Finished("stop", stop_reason="a\ufffd")


def test_a_request_without_stop_strings_passes_through() -> None:
    with make_scope() as scope:
        stage = StopStrings()(scope)
    delta = TextDelta("STOP", (1,), (4,))
    assert isinstance(stage, PassThrough)
    assert list(stage.feed(delta)) == [delta]
    assert list(stage.finish(LENGTH)) == []


def test_the_request_says_what_is_sought() -> None:
    request = make_request(
        stop=("b",), include_stop=True, limits=Limits(max_tokens=9, min_tokens=1)
    )
    with make_scope(request) as scope:
        stage = StopStrings()(scope)
    assert isinstance(stage, StopMatcher)
    out, end = run(stage, one_token_deltas(["b", "ab", "c"]))
    assert [step[0].text for step in out] == ["b", "ab"]
    assert end == Finished("stop", stop_reason="b")


@pytest.mark.parametrize("stop", [(), ("STOP",), ("lo w", "你好", ".x"), ("wörld",)])
@pytest.mark.parametrize("include_stop", [True, False])
def test_the_contract_of_a_stage(stop: tuple[str, ...], include_stop: bool) -> None:
    assert_contract(StopStrings(), request=make_request(stop=stop, include_stop=include_stop))


# --- against a search of the whole text ------------------------------------------------------


def search(
    text: str, ends: Sequence[int], stop: Sequence[str], min_tokens: int
) -> tuple[int, str, int] | None:
    """Where the first match that counts ends, the match, and how many tokens that is."""
    for end in range(1, len(text) + 1):
        found = [string for string in stop if text[:end].endswith(string)]
        count = sum(token_end < end for token_end in ends) + 1
        if found and count > min_tokens:
            return end, max(found, key=len), count
    return None


def longest_beginning(text: str, stop: Sequence[str]) -> int:
    """Length of the longest suffix of ``text`` that can go on to a stop string."""
    lengths = [n for string in stop for n in range(1, len(string)) if text.endswith(string[:n])]
    return max(lengths, default=0)


strings = st.text("ab", min_size=1, max_size=5) | st.text("abc", min_size=1, max_size=3)


@settings(max_examples=1500, deadline=None)
@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stop=st.lists(strings, min_size=1, max_size=5),
    include_stop=st.booleans(),
    min_tokens=st.integers(0, 4),
    data=st.data(),
)
def test_every_split_ends_where_the_whole_text_does(
    pieces: list[str], stop: list[str], include_stop: bool, min_tokens: int, data: st.DataObject
) -> None:
    text, ends = "".join(pieces), list(accumulate(map(len, pieces)))
    match = search(text, ends, stop, min_tokens)
    cuts = data.draw(st.sets(st.integers(0, len(pieces))))
    deltas: list[TextDelta] = []
    for begin, last in pairwise([0, *sorted(cuts), len(pieces)]):
        part = pieces[begin:last]
        spans = tuple(accumulate(map(len, part)))
        deltas.append(TextDelta("".join(part), tuple(range(begin, last)), spans))
    out, end = run(StopMatcher(stop, include_stop=include_stop, min_tokens=min_tokens), deltas)

    kept, ids = len(text), len(pieces)
    if match is not None:
        kept = match[0] - (0 if include_stop else len(match[1]))
        ids = match[2]
    assert end == (match and Finished("stop", stop_reason=match[1]))
    whole = [delta for step in out for delta in step]
    assert "".join(delta.text for delta in whole) == text[:kept]
    assert [token for delta in whole for token in delta.ids] == list(range(ids))

    sent, received = 0, 0
    for step, delta in zip(out, [*deltas, TextDelta("")], strict=False):
        received += len(delta.text)
        for result in step:
            absolute = [sent + end for end in result.ends]
            assert absolute == [min(ends[token], kept) for token in result.ids]
            assert all(0 <= end <= len(result.text) for end in result.ends)
            sent += len(result.text)
        held = 0 if include_stop else longest_beginning(text[:received], stop)
        if step is not out[-1]:
            assert sent == received - held


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.text("ab", max_size=3), max_size=30), min_tokens=st.integers(0, 3))
def test_a_token_leaves_with_the_last_of_its_text(pieces: list[str], min_tokens: int) -> None:
    ends = list(accumulate(map(len, pieces)))
    matcher = StopMatcher(["abab", "bbb"], min_tokens=min_tokens)
    sent, left = 0, 0
    for delta in one_token_deltas(pieces):
        for result in matcher.feed(delta):
            if isinstance(result, Finished):
                return
            sent += len(result.text)
            left += len(result.ids)
        fed = delta.ids[0] + 1
        assert left == sum(end <= sent for end in ends[:fed])
