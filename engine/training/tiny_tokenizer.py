"""Documents in, a byte-level BPE tokenizer out, with GLM's special tokens as its first ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("CHAT_TEMPLATE", "SPECIAL_TOKENS", "train_tokenizer")

SPECIAL_TOKENS: Final = (
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)

CHAT_TEMPLATE: Final = (
    "[gMASK]<sop>"
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train on ``documents``; every byte sequence can be encoded, and decodes to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer
