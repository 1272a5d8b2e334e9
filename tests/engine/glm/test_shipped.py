"""What is shipped: small enough, with a tokenizer that keeps every byte, and a chat's template."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.glm.asking import decode, prefill
from tilert_engine.glm import Built, GLMCheckpoint
from tilert_engine.models.tiny_glm5 import TINY_GLM5
from tilert_stream.events import Limits
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.model.tokenizer import TextTokenizer


def test_it_is_no_more_than_16_mb() -> None:
    assert sum(file.stat().st_size for file in TINY_GLM5.iterdir()) <= 16_000_000


def test_its_shape_is_glm5s(checkpoint: GLMCheckpoint) -> None:
    config = checkpoint.config
    assert (config.kv_lora_rank, config.qk_rope_head_dim, config.index_head_dim) == (512, 64, 128)
    assert (config.num_hidden_layers, config.num_nextn_predict_layers) == (4, 1)
    assert (checkpoint.cached.name, checkpoint.cached.layers) == ("tiny-glm5", 5)
    assert checkpoint.weights.embedding.shape[0] == checkpoint.tokenizer.get_vocab_size()


@pytest.fixture(scope="module")
def tokenizer(checkpoint: GLMCheckpoint) -> TextTokenizer:
    return TextTokenizer(checkpoint.tokenizer)


@given(text=st.text(max_size=40))
def test_every_text_comes_back(tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_chat_is_answered_in_words(built: Built) -> None:
    checkpoint = built.checkpoint
    template = ChatTemplate(checkpoint.chat_template, checkpoint.special_tokens)
    prompt = template.render([{"role": "user", "content": "Hello"}])
    assert prompt == "[gMASK]<sop><|user|>\nHello<|assistant|>\n"
    ids = checkpoint.tokenizer.encode(prompt, add_special_tokens=False).ids
    limits = Limits(60, eos_ids=checkpoint.eos_ids)
    output = prefill(built.prefill, ids, limits)
    said, finished = decode(built.decode, output.kv, output.first.ids[0], limits)
    assert finished.reason == "stop"
    text = checkpoint.tokenizer.decode(said, skip_special_tokens=True)
    assert text == "Hello! Ask me what a word means, and I will explain it."
