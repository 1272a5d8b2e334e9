from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import pytest

from tests.tokenizers import families
from tilert_stream.errors import EngineFault
from tilert_stream.events import Finished, TextDelta, TokenBatch, TokenLogprob
from tilert_stream.stages.detokenize import Detokenize, Detokenizer
from tilert_stream.testing import assert_contract, make_request, make_scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tilert_stream.model.tokenizer import TextTokenizer

BYTE = families.tokenizer("BYTE")
DETOKENIZE = Detokenize(BYTE)
EOS = families.EOS
LENGTH = Finished("length")


def deltas(
    batches: Sequence[Sequence[int]],
    prompt: tuple[int, ...] = (),
    *,
    skip_special_tokens: bool = True,
    ends_with_stop: bool = False,
) -> list[TextDelta]:
    """What the stage of one request yields, its end included."""
    request = make_request(prompt, skip_special_tokens=skip_special_tokens)
    with make_scope(request) as scope:
        stage = DETOKENIZE(scope)
    out: list[TextDelta] = []
    for place, ids in enumerate(batches):
        last = place == len(batches) - 1
        batch = TokenBatch(tuple(ids), ends_with_stop=ends_with_stop and last)
        out += [delta for delta in stage.feed(batch) if isinstance(delta, TextDelta)]
    out += [delta for delta in stage.finish(LENGTH) if isinstance(delta, TextDelta)]
    return out


def texts(ids: Sequence[int], prompt: tuple[int, ...] = ()) -> list[str]:
    """The texts of one-token batches; the flush comes last, if there is one."""
    return [delta.text for delta in deltas([[token] for token in ids], prompt)]


def splits(ids: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    for cuts in range(len(ids)):
        for chosen in combinations(range(1, len(ids)), cuts):
            edges = [0, *chosen, len(ids)]
            yield [ids[begin:end] for begin, end in pairwise(edges)]


@pytest.mark.parametrize("text", ["😀", "你", "한", "A你a"])
def test_utf_01_a_character_of_several_tokens(text: str) -> None:
    ids = list(text.encode())
    for batches in splits(ids):
        out = deltas(batches)
        assert (
            "".join(delta.text for delta in out)
            == text
            == BYTE.decode(ids, skip_special_tokens=True)
        )
        assert [token for delta in out for token in delta.ids] == ids


def test_utf_01_a_family_of_emoji() -> None:
    family = "👨‍👩‍👧‍👦"
    ids = list(family.encode())
    for size in range(1, len(ids) + 1):
        batches = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
        assert "".join(delta.text for delta in deltas(batches)) == family


@pytest.mark.parametrize("reason", ["length", "stop", "tool_calls"])
def test_utf_02_the_end_inside_a_character(reason: str) -> None:
    ids = (0x41, 0xF0, 0x9F)
    assert texts(ids) == ["A", "", "", "\ufffd"]
    assert BYTE.decode(ids, skip_special_tokens=True) == "A\ufffd"
    stage = Detokenizer(DETOKENIZE.decoder())
    list(stage.feed(TokenBatch(ids)))
    end = Finished("stop") if reason == "stop" else Finished("length")
    assert list(stage.finish(end)) == [TextDelta("\ufffd")]


def test_utf_02_the_end_by_a_stop_token_inside_a_character() -> None:
    out = deltas([[0x41, 0xF0], [0x9F, EOS]], ends_with_stop=True)
    assert [delta.text for delta in out] == ["A", "", "\ufffd"]


def test_utf_02_a_request_that_failed_has_no_half_character() -> None:
    stage = Detokenizer(DETOKENIZE.decoder())
    list(stage.feed(TokenBatch((0xF0,))))
    assert list(stage.finish(Finished.failed(EngineFault("a fault")))) == []


def test_utf_03_a_token_that_is_the_replacement_character() -> None:
    assert texts([0x61, 256]) == ["a", "\ufffd"]
    assert texts([0x61, 256, 0x62]) == ["a", "\ufffd", "b"]
    assert [len(delta.ids) for delta in deltas([[0x61, 256], [0x62]])] == [2, 1]


def test_utf_04_bytes_that_no_character_has() -> None:
    assert texts([0x9F] * 500 + [0x41]) == ["\ufffd"] * 500 + ["A"]
    # A beginning that is broken off comes out with the byte that breaks it off.
    assert texts([0xF0, 0x9F, 0x98, 0x41]) == ["", "", "", "\ufffdA"]
    # Overlong, a surrogate, beyond U+10FFFF: the second byte already decides.
    for bad in ([0xE0, 0x80], [0xED, 0xA0], [0xF0, 0x8F], [0xF4, 0x90]):
        assert texts(bad) == ["", "\ufffd\ufffd"]


def test_utf_06_the_prompt_ends_inside_a_character() -> None:
    prompt = (72, 105, 32, 0xF0, 0x9F, 0x8C)
    assert texts([0xB6], prompt) == ["🌶"]
    assert texts([0x41], prompt) == ["A"]
    assert texts([], prompt) == []
    assert texts([0x8C, 0x41], prompt[:-1]) == ["", "A"]
    assert texts([0xF0, 0x9F], prompt) == ["", "", "\ufffd"]


@pytest.mark.parametrize("skipped", [(), (EOS,), (-1, 10**6, EOS)])
def test_utf_06_behind_special_tokens(skipped: tuple[int, ...]) -> None:
    assert texts([0x8C, 0xB6], (72, 0xF0, 0x9F, *skipped)) == ["", "🌶"]


def test_utf_09_leading_spaces_are_kept() -> None:
    assert texts([257, 257], (0x41,)) == [" the", " the"]
    assert texts([257, 257]) == [" the", " the"]
    assert texts([0x20, 0x20, 257]) == [" ", " ", " the"]


def test_utf_09_empty_text_is_counted() -> None:
    assert deltas([[EOS], [0xE4]]) == [
        TextDelta("", (EOS,), (0,)),
        TextDelta("", (0xE4,), (0,)),
        TextDelta("\ufffd"),
    ]
    assert deltas([[]]) == []


def test_utf_10_special_tokens() -> None:
    batch = [*b"hi", EOS, *b"x"]
    assert deltas([batch]) == [TextDelta("hix", tuple(batch), (1, 2, 2, 3))]
    shown = deltas([batch], skip_special_tokens=False)
    assert shown == [TextDelta("hi<|eos|>x", tuple(batch), (1, 2, 9, 10))]
    assert texts([EOS]) == [""]


@pytest.mark.parametrize("skip", [True, False])
def test_utf_10_the_stop_token_has_no_text(skip: bool) -> None:
    for stop in (EOS, ord("x"), 0xE4):
        expected = [TextDelta("hi", (*b"hi", stop), (1, 2, 2))]
        out = deltas([[*b"hi", stop]], skip_special_tokens=skip, ends_with_stop=True)
        assert out == expected
        alone = deltas([[stop]], skip_special_tokens=skip, ends_with_stop=True)
        assert alone == [TextDelta("", (stop,), (0,))]


def test_ids_outside_the_vocabulary_are_counted() -> None:
    assert deltas([[-1], [0xE4, 2**31, 0xBD, -7, 0xA0, 259]]) == [
        TextDelta("", (-1,), (0,)),
        TextDelta("你", (0xE4, 2**31, 0xBD, -7, 0xA0, 259), (0, 0, 0, 0, 1, 1)),
    ]


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    assert deltas([[0x41, 0xE4, 0xBD, 0xA0, 0x42, 0xE4]]) == [
        TextDelta("A你B", (0x41, 0xE4, 0xBD, 0xA0, 0x42, 0xE4), (1, 1, 1, 2, 3, 3)),
        TextDelta("\ufffd"),
    ]


def test_logprobs_travel_with_their_ids() -> None:
    logprobs = (TokenLogprob(0xE4, -1.0), TokenLogprob(0xBD, -2.0))
    stage = Detokenizer(DETOKENIZE.decoder())
    (delta,) = stage.feed(TokenBatch((0xE4, 0xBD), logprobs))
    assert delta.logprobs == logprobs


def test_requests_share_the_table_only() -> None:
    first, second = (Detokenizer(DETOKENIZE.decoder()) for _ in range(2))
    list(first.feed(TokenBatch((0xE4, 0xBD))))
    assert [delta.text for delta in second.feed(TokenBatch((0xA0,)))] == ["\ufffd"]
    assert [delta.text for delta in first.feed(TokenBatch((0xA0,)))] == ["你"]


def test_the_contract_of_a_stage() -> None:
    batches = [TokenBatch((token,)) for token in "é你😀".encode()]
    assert_contract(DETOKENIZE, inputs=batches)
    assert_contract(Detokenize(families.tokenizer("byte-fallback")))


# --- other families --------------------------------------------------------------------------


def stream(tokenizer: TextTokenizer, ids: Sequence[int], prompt: Sequence[int] = ()) -> str:
    decoder = Detokenize(tokenizer).decoder(prompt)
    return "".join(decoder.push(token_id) for token_id in ids) + decoder.flush()


def test_only_a_whole_text_loses_its_first_space() -> None:
    tokenizer = families.tokenizer("byte-fallback")
    first = tokenizer.encode("two", add_special_tokens=False)
    bos = next(token_id for token_id, token in tokenizer.tokens.items() if token == "<s>")
    assert tokenizer.tokens[first[0]].startswith("▁")
    for prompt in ((), (bos,), (bos, -1)):
        assert stream(tokenizer, [*first, *first], prompt) == "two two"
    assert stream(tokenizer, first, (bos, *first)) == " two"
    space = next(token_id for token_id, token in tokenizer.tokens.items() if token == "▁")
    # A prompt that is one space has used the strip up.
    assert stream(tokenizer, first, (space,)) == " two"
    assert stream(tokenizer, [space, *first]) == " two"


def test_byte_fallback_replaces_only_the_bad_bytes() -> None:
    tokenizer = families.tokenizer("byte-fallback")
    ids = {token: token_id for token_id, token in tokenizer.tokens.items()}
    run = [ids[f"<0x{byte:02X}>"] for byte in "你".encode() + b"\xff"]
    assert tokenizer.decode(run, skip_special_tokens=True) == "\ufffd" * 4
    assert stream(tokenizer, run) == "你\ufffd"


@pytest.mark.parametrize("name", families.windowed())
def test_decoders_that_join_tokens(name: str) -> None:
    tokenizer = families.windowed()[name]
    words = (0, 2, 1, 3, 10, 7, 8, 5, 9, 6, -1, 0, 11, 3, 1)
    for prompt_length in (0, 1, 2, 9):
        prompt, ids = words[:prompt_length], (words * 7)[prompt_length:]
        before = tokenizer.decode(prompt, skip_special_tokens=True)
        whole = tokenizer.decode(prompt + ids, skip_special_tokens=True)
        assert whole.startswith(before)
        assert stream(tokenizer, ids, prompt) == whole.removeprefix(before)


def test_special_tokens_before_a_joined_word() -> None:
    tokenizer = families.windowed()["WordPiece"]
    assert stream(tokenizer, [1], [0, *[10] * 40]) == " world"
    assert stream(tokenizer, [*[10] * 40, 1], [0]) == " world"
    shown = Detokenize(tokenizer).decoder((0,), skip_special_tokens=False)
    assert shown.push(10) == " [CLS]"
