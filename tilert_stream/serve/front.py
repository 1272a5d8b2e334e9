"""The front's half of a model: a configuration in, tokenizer and card out. No torch, no weights.

All that a router needs of the model that others compute.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tilert_stream.errors import ConfigError
from tilert_stream.events import Sampling
from tilert_stream.model.card import ModelCard
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.model.tokenizer import TextTokenizer

from . import demo_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer

    from tilert_stream.config.engine import ModelOptions, WindowOptions

__all__ = (
    "LONGEST",
    "TINY",
    "Described",
    "Front",
    "byte_front",
    "choose",
    "load_front",
    "locate",
    "model_front",
)

logger = logging.getLogger(__name__)

AUTO: Final = "auto"
DEMO: Final = "demo"
TINY: Final = "tiny-glm5"
BYTES: Final = "bytes"
DEMO_NAME: Final = "smollm2-135m-instruct"
DEMO_SAMPLING: Final = Sampling(temperature=0.2, top_p=0.9)
"""What the model's card recommends; the GGUF file has no generation_config.json to say so."""
LONGEST: Final = 4096
"""Tokens of a scripted engine's slot where nothing else is asked for."""


class Described(Protocol):
    """What a front takes of a model's description, of whatever family."""

    @property
    def name(self) -> str:
        """What clients call it unless another name is configured."""
        ...

    @property
    def config(self) -> _HasVocabulary:
        """Its dimensions."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""
        ...

    @property
    def chat_template(self) -> str | None:
        """Jinja source; None for a base model."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """What the chat template may name."""
        ...

    @property
    def default_sampling(self) -> Sampling:
        """What the model's makers recommend."""
        ...


class _HasVocabulary(Protocol):
    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Front:
    """What clients see of a model."""

    card: ModelCard
    tokenizer: TextTokenizer


def choose(model: str) -> str:
    """``model``; for ``auto``, the best that is here: nothing is fetched, and nothing can fail.

    Of one process only: a router and its nodes must be told the same model.
    """
    if model != AUTO:
        return model
    if demo_model.locate() is not None:
        return DEMO
    logger.info(
        "serving %s, which is shipped: SmolLM2-135M is not in the cache; this brings it: %s",
        TINY,
        demo_model.COMMAND,
    )
    return TINY


def load_front(config: WindowOptions) -> Front:
    """The front of what ``config`` names; ``bytes`` is that of the scripted engines.

    :raises ~tilert_stream.errors.ConfigError: it is not there, or not of a kind that can be served;
        the message has the command that brings it.
    """
    if config.model == BYTES:
        return byte_front(config, config.max_seq_len or LONGEST)
    from tilert_engine.models import describe, describe_tiny_glm5

    tiny = config.model == TINY
    description = describe_tiny_glm5() if tiny else describe(locate(config.model))
    longest = config.max_seq_len or description.default_max_seq_len
    return model_front(description, config, longest)


def locate(model: str) -> Path:
    """Where ``model`` is; the demo model is fetched if it is not there yet.

    :raises ~tilert_stream.errors.ConfigError: there is no such file or directory.
    """
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


def model_front(description: Described, config: ModelOptions, max_seq_len: int) -> Front:
    """The front of a real model."""
    tokenizer = TextTokenizer(description.tokenizer)
    template = description.chat_template
    demo = config.model == DEMO
    card = ModelCard(
        names=config.served_model_names or (DEMO_NAME if demo else description.name,),
        tokenizer=tokenizer,
        max_seq_len=max_seq_len,
        vocab_size=description.config.vocab_size,
        created=int(time.time()),
        chat_template=(
            None if template is None else ChatTemplate(template, description.special_tokens)
        ),
        eos_ids=description.eos_ids,
        default_sampling=DEMO_SAMPLING if demo else description.default_sampling,
    )
    return Front(card, tokenizer)


def byte_front(config: ModelOptions, max_seq_len: int) -> Front:
    """The front of the scripted engines: a token a byte, a chat of what was said."""
    from tilert_stream.model.byte_tokenizer import EOS, byte_tokenizer

    tokenizer = byte_tokenizer()
    card = ModelCard(
        names=config.served_model_names or ("scripted",),
        tokenizer=tokenizer,
        max_seq_len=max_seq_len,
        vocab_size=tokenizer.vocab_size,
        created=int(time.time()),
        chat_template=ChatTemplate(
            "{% for message in messages %}{{ message.content }}{% endfor %}"
        ),
        eos_ids=frozenset({EOS}),
    )
    return Front(card, tokenizer)
