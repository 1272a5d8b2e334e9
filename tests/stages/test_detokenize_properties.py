"""Against whole decodes by the ``tokenizers`` library, on trained and on real tokenizers."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers import families
from tilert_stream.events import Finished, TextDelta, TokenBatch
from tilert_stream.model.byte_table import ByteDecoder
from tilert_stream.stages.detokenize import Detokenize, Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_stream.model.tokenizer import TextTokenizer

needs_mistral = pytest.mark.skipif(
    not families.installed("mistral_common"), reason="needs the wheel mistral-common"
)
BYTE_LEVEL = ["BYTE", "byte-level", "DeepSeek"]
BYTE_FALLBACK = ["byte-fallback", pytest.param("Mistral", marks=needs_mistral)]


@cache
def detokenize(name: str) -> Detokenize:
    return Detokenize(families.tokenizer(name))


def agreeing(before: str, whole: str) -> int:
    """How many characters the prompt's text and the whole text begin with alike."""
    pairs = zip(before, whole, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(whole)))


def run(
    name: str, prompt: Sequence[int], batches: Sequence[Sequence[int]], *, skip: bool
) -> list[TextDelta]:
    stage = Detokenizer(detokenize(name).decoder(prompt, skip_special_tokens=skip))
    out = [delta for ids in batches for delta in stage.feed(TokenBatch(tuple(ids)))]
    return [*out, *stage.finish(Finished("length"))]


def joined(out: Sequence[TextDelta]) -> str:
    return "".join(delta.text for delta in out)


def decode(name: str, ids: Sequence[int], *, skip: bool) -> str:
    known = [token_id for token_id in ids if token_id in families.tokenizer(name).tokens]
    return families.library(name).decode(known, skip_special_tokens=skip)


def any_ids(tokenizer: TextTokenizer) -> st.SearchStrategy[list[int]]:
    """Ordinary ids, single bytes, special and added ids, ids that no token has."""
    bytes_ = [i for i in range(300) if len(tokenizer.tokens.get(i, "long")) == 1]
    bytes_ += [i for i, token in tokenizer.tokens.items() if token.startswith("<0x")]
    added = sorted(tokenizer.special_ids) + list(
        range(max(0, tokenizer.vocab_size - 4), tokenizer.vocab_size)
    )
    token = st.one_of(
        st.integers(0, tokenizer.vocab_size - 1),
        st.sampled_from(bytes_),
        st.sampled_from(bytes_),
        st.sampled_from(added),
        st.sampled_from([-1, tokenizer.vocab_size, 2**40]),
    )
    text = st.text(max_size=4).map(lambda text: _encode(tokenizer, text))
    return st.lists(st.one_of(token.map(lambda token_id: [token_id]), text), max_size=12).map(
        lambda parts: [token_id for part in parts for token_id in part]
    )


def _encode(tokenizer: TextTokenizer, text: str) -> list[int]:
    text = "".join(c for c in text if not "\ud800" <= c <= "\udfff")
    return list(tokenizer.encode(text, add_special_tokens=False))


def split(data: st.DataObject, ids: Sequence[int]) -> list[Sequence[int]]:
    cuts = data.draw(st.sets(st.integers(0, len(ids))))
    return [ids[a:b] for a, b in pairwise([0, *sorted(cuts), len(ids)])]


def assert_attributed(out: Sequence[TextDelta], singles: Sequence[TextDelta]) -> None:
    """Each token has the same text as when it came alone."""
    pieces = [delta.text[begin:end] for delta in out for begin, end in pairwise((0, *delta.ends))]
    assert pieces == [delta.text for delta in singles if delta.ids]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", BYTE_LEVEL)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_byte_level_is_always_the_librarys(name: str, skip: bool, data: st.DataObject) -> None:
    ids = data.draw(any_ids(families.tokenizer(name)))
    border = data.draw(st.integers(0, len(ids)))
    prompt, ids = ids[:border], ids[border:]
    whole = decode(name, prompt + ids, skip=skip)
    before = decode(name, prompt, skip=skip)
    expected = whole[agreeing(before, whole) :]
    out = run(name, prompt, split(data, ids), skip=skip)
    singles = run(name, prompt, [[token_id] for token_id in ids], skip=skip)
    assert joined(out) == joined(singles) == expected
    assert [token_id for delta in out for token_id in delta.ids] == ids
    assert_attributed(out, singles)


@pytest.mark.parametrize("name", [*BYTE_LEVEL, *BYTE_FALLBACK])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_only_the_beginning_of_a_character_is_held(name: str, data: st.DataObject) -> None:
    ids = data.draw(any_ids(families.tokenizer(name)))
    decoder = detokenize(name).decoder()
    sent = ""
    for place, token_id in enumerate(ids):
        sent += decoder.push(token_id)
        whole = joined(run(name, (), [ids[: place + 1]], skip=True))
        assert whole in (sent, sent + "\ufffd")


@pytest.mark.parametrize("name", BYTE_FALLBACK)
@settings(max_examples=150, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")),
    data=st.data(),
)
def test_byte_fallback_is_the_librarys_on_valid_bytes(
    name: str, text: str, data: st.DataObject
) -> None:
    ids = _encode(families.tokenizer(name), text)
    border = data.draw(st.integers(0, len(ids)))
    whole = decode(name, ids, skip=True)
    # The prompt's own text ends with its last whole character.
    last = border
    while "\ufffd" in (before := decode(name, ids[:last], skip=True)):
        last -= 1
    assert whole.startswith(before)
    out = run(name, ids[:border], split(data, ids[border:]), skip=True)
    assert joined(out) == whole.removeprefix(before)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", BYTE_FALLBACK)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_byte_fallback_replaces_bad_bytes_and_nothing_else(
    name: str, skip: bool, data: st.DataObject
) -> None:
    tokenizer = families.tokenizer(name)
    ids = data.draw(any_ids(tokenizer))
    raw = b""
    for token_id in ids:
        token = tokenizer.tokens.get(token_id, "")
        if skip and token_id in tokenizer.special_ids:
            continue
        is_byte = token.startswith("<0x") and token.endswith(">")
        raw += bytes.fromhex(token[3:5]) if is_byte else token.replace("▁", " ").encode()
    expected = raw.decode(errors="replace").removeprefix(" ")
    assert joined(run(name, (), split(data, ids), skip=skip)) == expected


def test_every_beginning_of_a_character_and_no_other_bytes_are_held() -> None:
    """All sequences of bytes up to the one that decides, against ``bytes.decode`` of the whole."""
    spellings = {byte: bytes([byte]) for byte in range(256)}
    beginnings = {
        character.encode()[:length]
        for character in map(chr, [*range(0x80, 0xD800), *range(0xE000, 0x110000)])
        for length in range(1, len(character.encode()))
    }
    third = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xED, 0xF0, 0xFF)
    sequences = [*product(range(256)), *product(range(256), repeat=2)]
    sequences += product(range(0xC0, 0x100), range(0x80, 0xC0), third)
    for sequence in sequences:
        decoder = ByteDecoder(spellings, ())
        sent = "".join(map(decoder.push, sequence))
        tail = decoder.flush()
        assert sent + tail == bytes(sequence).decode(errors="replace")
        held = any(bytes(sequence[-n:]) in beginnings for n in (1, 2, 3))
        assert tail == ("\ufffd" if held else ""), bytes(sequence)
