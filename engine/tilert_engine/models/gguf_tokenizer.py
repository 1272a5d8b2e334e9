"""The tokenizer inside a GGUF file: ``tokenizer.ggml.*`` metadata in, ``Tokenizer`` out.

Byte-level BPE only (``tokenizer.ggml.model`` = ``gpt2``). How text is split before BPE is told by
``tokenizer.ggml.pre``; the patterns are those of llama.cpp's ``llama-vocab.cpp`` and of the models'
own ``tokenizer.json``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as pre

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenizers.pre_tokenizers import PreTokenizer

    from .metadata import Metadata

__all__ = ("gguf_eos_ids", "gguf_tokenizer")

_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# llama.cpp ends a generation at any control token of these names, whatever the metadata's eos is:
# chat models often keep the base model's eos beside the end of turn.
_END_OF_GENERATION: Final = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "<EOT>",
    }
)


def _gpt2() -> PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits() -> PreTokenizer:
    return pre.Sequence([pre.Digits(individual_digits=True), _gpt2()])


def _words(digits: str) -> PreTokenizer:
    split = pre.Split(Regex(_WORDS % digits), behavior="isolated")
    return pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


_PRE_TOKENIZERS: Final[dict[str, Callable[[], PreTokenizer]]] = {
    "gpt-2": _gpt2,
    "smollm": _digits,
    "starcoder": _digits,
    "refact": _digits,
    "llama-bpe": lambda: _words("{1,3}"),
    "llama3": lambda: _words("{1,3}"),
    "llama-v3": lambda: _words("{1,3}"),
    "qwen2": lambda: _words(""),
}
_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe", "llama3", "llama-v3"})
"""Whose BPE takes a word that is in the vocabulary as it is, without merging."""


def gguf_tokenizer(metadata: Metadata) -> Tokenizer:
    """Build the tokenizer.

    :raises ~tilert_stream.errors.ConfigError: another tokenizer model, an unknown
        ``tokenizer.ggml.pre``, or lists that do not fit one another.
    """
    model = metadata.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise ConfigError(
            f"{metadata.source}: tokenizer.ggml.model is {model!r}, only 'gpt2' (byte-level BPE) "
            "is built from GGUF; give the model's Hugging Face directory instead"
        )
    name = metadata.text("tokenizer.ggml.pre")
    if name not in _PRE_TOKENIZERS:
        raise ConfigError(
            f"{metadata.source}: tokenizer.ggml.pre is {name!r}, known are "
            f"{', '.join(sorted(_PRE_TOKENIZERS))}; give the model's Hugging Face directory instead"
        )
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = _token_types(metadata, len(tokens))
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges(metadata, vocab),
            ignore_merges=name in _WHOLE_WORDS_FIRST,
        )
    )
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[name]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType] -- untyped in tokenizers
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL
        ]
    )
    tokenizer.add_tokens(  # pyright: ignore[reportUnknownMemberType] -- untyped in tokenizers
        [
            AddedToken(token, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _USER_DEFINED
        ]
    )
    if metadata.flag("tokenizer.ggml.add_bos_token", default=False):
        bos_id = metadata.integer("tokenizer.ggml.bos_token_id")
        bos = _token(metadata, tokens, bos_id)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, bos_id)]
        )
    return tokenizer


def gguf_eos_ids(metadata: Metadata) -> frozenset[int]:
    """The ids that end a generation: eos, eot and eom, and control tokens known as such."""
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = _token_types(metadata, len(tokens))
    named = {
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == _CONTROL and token in _END_OF_GENERATION
    }
    for key in ("eos", "eot", "eom"):
        named.update(metadata.integers(f"tokenizer.ggml.{key}_token_id"))
    return frozenset(named)


def _token_types(metadata: Metadata, count: int) -> tuple[int, ...]:
    types = metadata.integers("tokenizer.ggml.token_type")
    if len(types) != count:
        raise ConfigError(
            f"{metadata.source}: tokenizer.ggml.token_type has {len(types)} entries, "
            f"tokenizer.ggml.tokens has {count}; convert the model again"
        )
    return types


def _merges(metadata: Metadata, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for line in metadata.texts("tokenizer.ggml.merges"):
        # The byte alphabet has no space, so the only one is the separator.
        left, space, right = line.partition(" ")
        if not (left and space and right):
            raise ConfigError(
                f"{metadata.source}: tokenizer.ggml.merges has {line!r}; it must be two tokens"
            )
        if not {left, right, left + right} <= vocab.keys():
            raise ConfigError(
                f"{metadata.source}: tokenizer.ggml.merges has {line!r}; its parts and their merge "
                "must be in tokenizer.ggml.tokens: convert the model again"
            )
        merges.append((left, right))
    return merges


def _token(metadata: Metadata, tokens: list[str], index: int) -> str:
    if not 0 <= index < len(tokens):
        raise ConfigError(
            f"{metadata.source}: token id {index} is not in the vocabulary of {len(tokens)} tokens"
        )
    return tokens[index]
