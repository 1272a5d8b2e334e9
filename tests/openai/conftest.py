"""A served model whose token ids are bytes, on a real tokenizer and a real chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tilert_stream.events import Sampling
from tilert_stream.model.card import ModelCard
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.model.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

CHATML = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _spellings() -> Iterator[str]:
    """GPT-2's character for each byte (``bytes_to_unicode``)."""
    shifted = 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            yield chr(byte)
        else:
            yield chr(shifted)
            shifted += 1


def make_byte_tokenizer() -> TextTokenizer:
    tokenizer = Tokenizer(
        models.BPE(vocab={text: byte for byte, text in enumerate(_spellings())}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    # The stub of tokenizers leaves the list without an element type.
    tokenizer.add_special_tokens(["<bos>"])  # pyright: ignore[reportUnknownMemberType]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 256)]
    )
    return TextTokenizer(tokenizer)


@pytest.fixture(scope="session")
def card() -> ModelCard:
    return ModelCard(
        names=("byte", "byte-alias"),
        tokenizer=make_byte_tokenizer(),
        max_seq_len=1000,
        vocab_size=260,
        created=1764640000,
        chat_template=ChatTemplate(CHATML),
        eos_ids=frozenset({257}),
        default_sampling=Sampling(temperature=0.6, top_p=0.9, top_k=40, min_p=0.1),
    )
