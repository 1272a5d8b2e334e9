# pyright: reportUnknownMemberType=false
# The stubs of ``tokenizers`` leave the arguments of some methods untyped.

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tokenizers import AddedToken, Tokenizer, models, processors

from tests.tokenizers import families
from tilert_stream.errors import InvalidRequest
from tilert_stream.model.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from pathlib import Path


def words(*extra: str) -> Tokenizer:
    names = ["[UNK]", "a", "b", *extra]
    return Tokenizer(
        models.WordLevel(vocab={name: n for n, name in enumerate(names)}, unk_token="[UNK]")
    )


@pytest.mark.parametrize("text", families.SENTENCES)
def test_text_comes_back(text: str) -> None:
    for tokenizer in (
        families.tokenizer("BYTE"),
        families.tokenizer("byte-level"),
        families.tokenizer("byte-fallback"),
    ):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)


def test_special_tokens_are_added_only_when_asked_for() -> None:
    inner = words("[BOS]")
    inner.add_special_tokens(["[BOS]"])
    inner.post_processor = processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 3)]
    )
    tokenizer = TextTokenizer(inner)
    assert tokenizer.encode("b", add_special_tokens=True) == (3, 2)
    assert tokenizer.encode("b", add_special_tokens=False) == (2,)
    assert tokenizer.decode((3, 2), skip_special_tokens=False) == "[BOS] b"
    assert tokenizer.decode((3, 2), skip_special_tokens=True) == "b"


def test_special_ids_and_vocab_size() -> None:
    inner = words()
    inner.add_tokens([AddedToken("plain")])
    inner.add_special_tokens(["[END]", "a"])
    tokenizer = TextTokenizer(inner)
    assert tokenizer.special_ids == {1, 4}
    assert tokenizer.vocab_size == 5
    assert tokenizer.tokens == {0: "[UNK]", 1: "a", 2: "b", 3: "plain", 4: "[END]"}


def test_ids_outside_the_vocabulary_give_no_text() -> None:
    tokenizer = families.tokenizer("BYTE")
    ids = (72, -1, tokenizer.vocab_size, 2**40, 105)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Hi"


def test_a_prompt_is_never_cut_or_padded() -> None:
    inner = words()
    inner.enable_truncation(2)
    inner.enable_padding(length=9, pad_token="[UNK]")
    assert len(inner.encode("a b a b").ids) == 9
    ids = TextTokenizer(inner).encode("a b a b", add_special_tokens=False)
    assert ids == (0,)  # one word without a pre-tokenizer: neither cut to 2 nor padded to 9


@pytest.mark.parametrize(("text", "place"), [("a\ud83d", 1), ("\ude00", 0), ("\ude00\ud83d", 0)])
def test_a_lone_surrogate_is_the_clients_fault(text: str, place: int) -> None:
    with pytest.raises(InvalidRequest, match=f"U\\+D[8E][03][0D], as character {place};"):
        families.tokenizer("BYTE").encode(text, add_special_tokens=False)


def test_from_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    words().save(str(path))
    assert TextTokenizer.from_file(path).encode("a", add_special_tokens=False) == (1,)


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": 5}')
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer\.json: "):
        TextTokenizer.from_file(path)
    with pytest.raises(FileNotFoundError):
        TextTokenizer.from_file(tmp_path / "absent.json")


def test_the_decoders_are_read_in_order() -> None:
    kinds = [step["type"] for step in families.tokenizer("byte-fallback").decoder_steps()]
    assert kinds == ["Replace", "ByteFallback", "Fuse", "Strip"]
    assert TextTokenizer(words()).decoder_steps() == ()


def test_the_package_does_not_bring_the_tokenizers_library() -> None:
    code = "import sys, tilert_stream; sys.exit('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
