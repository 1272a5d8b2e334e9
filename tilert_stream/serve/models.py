"""The served model: what the configuration names, loaded and ready to be put into a service."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilert_stream.errors import ConfigError
from tilert_stream.events import Sampling
from tilert_stream.model.card import ModelCard
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.model.tokenizer import TextTokenizer

from . import demo_model

if TYPE_CHECKING:
    from tilert_stream.abc import DecodeEngine, PrefillEngine
    from tilert_stream.config import ServeConfig

__all__ = ("Model", "load_model")

DEMO: Final = "demo"
DEMO_NAME: Final = "smollm2-135m-instruct"
DEMO_SAMPLING: Final = Sampling(temperature=0.2, top_p=0.9)
"""What the model's card recommends; the GGUF file has no generation_config.json to say so."""
LONGEST: Final = 4096
"""Tokens of a slot where nothing else is asked for: a slot's KV cache takes memory."""


@dataclass(frozen=True, slots=True)
class Model:
    """Two engines that share nothing but the KV cache handed over, and what clients see of them."""

    card: ModelCard
    tokenizer: TextTokenizer
    prefill: PrefillEngine[Any]
    decode: DecodeEngine[Any]


def load_model(config: ServeConfig) -> Model:
    """Load what ``config`` names; blocks for seconds.

    :raises ~tilert_stream.errors.ConfigError: it is not there, or not of a kind that can be served;
        the message has the command that brings it.
    """
    return _scripted(config) if config.engine == "scripted" else _torch(config)


def _torch(config: ServeConfig) -> Model:
    from tilert_engine.torch import build

    built = build(
        _path(config.model),
        slots=config.slots,
        max_seq_len=config.max_seq_len,
        ar_steps=config.ar_steps,
        device=config.device,
        dtype=config.dtype,
        threads=config.threads,
    )
    checkpoint = built.checkpoint
    tokenizer = TextTokenizer(checkpoint.tokenizer)
    template = checkpoint.chat_template
    demo = config.model == DEMO
    card = ModelCard(
        names=config.served_model_names or (DEMO_NAME if demo else checkpoint.name,),
        tokenizer=tokenizer,
        max_seq_len=built.decode.max_seq_len,
        vocab_size=checkpoint.config.vocab_size,
        created=int(time.time()),
        chat_template=(
            None if template is None else ChatTemplate(template, checkpoint.special_tokens)
        ),
        eos_ids=checkpoint.eos_ids,
        default_sampling=DEMO_SAMPLING if demo else checkpoint.default_sampling,
    )
    return Model(card, tokenizer, built.prefill, built.decode)


def _path(model: str) -> Path:
    if model == DEMO:
        return demo_model.locate() or demo_model.obtain(progress=True)
    path = Path(model).expanduser()
    if not path.exists():
        raise ConfigError(
            f"model is {model!r}; there is no such file or directory. Give a GGUF file, a Hugging"
            f" Face directory, or 'demo', which `{sys.executable} -m"
            " tilert_stream.serve.demo_model` brings.",
            param="model",
        )
    return path


def _scripted(config: ServeConfig) -> Model:
    from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
    from tilert_stream.model.byte_tokenizer import EOS, byte_tokenizer

    longest = config.max_seq_len or LONGEST
    tokenizer = byte_tokenizer()
    steps = config.ar_steps or 1
    script = Script(chain=lambda _turn: steps)
    card = ModelCard(
        names=config.served_model_names or ("scripted",),
        tokenizer=tokenizer,
        max_seq_len=longest,
        vocab_size=tokenizer.vocab_size,
        created=int(time.time()),
        chat_template=ChatTemplate(
            "{% for message in messages %}{{ message.content }}{% endfor %}"
        ),
        eos_ids=frozenset({EOS}),
    )
    return Model(
        card,
        tokenizer,
        ScriptedPrefill(script, max_seq_len=longest),
        ScriptedDecode(script, slots=config.slots, max_seq_len=longest),
    )
