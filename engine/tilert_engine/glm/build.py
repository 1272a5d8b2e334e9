"""Everything from one call: a directory and options in, a checkpoint and its two engines out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tilert_engine.chains import DEFAULT_AR_STEPS
from tilert_engine.models.tiny_glm5 import TINY_GLM5, TINY_GLM5_NAME
from tilert_engine.torch.grammar import grammars_of
from tilert_stream.errors import ConfigError

from .checkpoint import GLMCheckpoint
from .decode import GLMDecode
from .prefill import GLMPrefill, check_window

if TYPE_CHECKING:
    from pathlib import Path

    from tilert_engine.layouts.mla_nsa_model import CacheDtype
    from tilert_engine.torch.grammar import Grammars

__all__ = ("Built", "build")


@dataclass(frozen=True)
class Built:
    """A model ready to serve. The engines share the checkpoint's weights, and nothing else.

    Each is made once, when it is first asked for: decode's slots take memory.
    """

    checkpoint: GLMCheckpoint
    max_seq_len: int
    slots: int
    ar_steps: int
    drafts: int
    cache_dtype: CacheDtype

    @cached_property
    def grammars(self) -> Grammars | None:
        """What holds answers to a grammar, for both engines; None: nothing here can."""
        checkpoint = self.checkpoint
        return grammars_of(checkpoint.tokenizer, checkpoint.config.vocab_size, checkpoint.eos_ids)

    @cached_property
    def prefill(self) -> GLMPrefill:
        """Computes prompts."""
        return GLMPrefill(
            self.checkpoint,
            max_seq_len=self.max_seq_len,
            cache_dtype=self.cache_dtype,
            grammars=self.grammars,
        )

    @cached_property
    def decode(self) -> GLMDecode:
        """Computes answers.

        :raises ~tilert_stream.errors.ConfigError: ``slots`` or ``ar_steps`` is below 1.
        """
        return GLMDecode(
            self.checkpoint,
            slots=self.slots,
            max_seq_len=self.max_seq_len,
            ar_steps=self.ar_steps,
            drafts=self.drafts,
            grammars=self.grammars,
        )


def build(
    path: Path = TINY_GLM5,
    *,
    slots: int = 4,
    max_seq_len: int | None = None,
    ar_steps: int | None = None,
    drafts: int = 3,
    cache_dtype: CacheDtype = "fp8_ds_mla",
    device: str = "auto",
    threads: int | None = None,
) -> Built:
    """Load a model for its engines; they compute in float32.

    :param max_seq_len: tokens of prompt and answer together; None: the model's own.
    :param ar_steps: steps of a chain; None: 8 on CUDA and 1 on a CPU, where reading a token back
        costs nothing, and a chain would only hold it.
    :param drafts: tokens that a step verifies beside its own; 0: no multi-token prediction.
    :param device: ``auto`` (a model this small is faster on a CPU), ``cpu``, ``cuda``, ``cuda:1`` …
    :param threads: CPU threads of one operation, for the whole process; None: torch's choice.
    :raises ~tilert_stream.errors.ConfigError: an option or the model is wrong.
    """
    if threads is not None:
        if threads < 1:
            raise ConfigError(f"threads is {threads}; it must be at least 1")
        torch.set_num_threads(threads)
    name = TINY_GLM5_NAME if path == TINY_GLM5 else None
    checkpoint = GLMCheckpoint.load(path, dtype=torch.float32, device=_device(device), name=name)
    longest = checkpoint.default_max_seq_len if max_seq_len is None else max_seq_len
    check_window(checkpoint, longest)
    if ar_steps is None:
        ar_steps = DEFAULT_AR_STEPS if checkpoint.weights.device.type == "cuda" else 1
    return Built(checkpoint, longest, slots, ar_steps, drafts, cache_dtype)


def _device(name: str) -> torch.device:
    try:
        device = torch.device("cpu" if name == "auto" else name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}; give auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, torch sees {torch.cuda.device_count()} CUDA devices; give cpu"
        )
    return device
