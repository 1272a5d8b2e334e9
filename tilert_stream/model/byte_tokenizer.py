"""Tokenizers small enough to see through."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tilert_stream.model.tokenizer import TextTokenizer

__all__ = ("EOS", "byte_tokenizer")

EOS = 256
"""The id of the end token of ``byte_tokenizer``."""


def byte_tokenizer() -> TextTokenizer:
    """A byte-level tokenizer: ids 0–255 are the bytes themselves, ``EOS`` is special."""
    alphabet = _byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = AddedToken("<|end|>", special=True)
    tokenizer.add_special_tokens([end])  # pyright: ignore[reportUnknownMemberType] - no stubs
    return TextTokenizer(tokenizer)


def _byte_alphabet() -> list[str]:
    """The characters that stand for bytes 0–255 in byte-level BPE, as GPT-2 chose them.

    Printable Latin-1 stands for itself; the other bytes get the code points from 256 on, in order.
    """
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in itself]
    return [chr(byte if byte in itself else 256 + moved.index(byte)) for byte in range(256)]
