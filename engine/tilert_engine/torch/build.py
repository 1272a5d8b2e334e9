"""Everything from one call: a path and options in, a checkpoint and its two engines out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import torch

from tilert_stream.errors import ConfigError

from .decode import TorchDecode
from .grammar import grammars_of
from .load import load
from .prefill import TorchPrefill, check_window

if TYPE_CHECKING:
    from pathlib import Path

    from .checkpoint import Checkpoint
    from .grammar import Grammars

__all__ = ("Built", "build")

_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Built:
    """A model ready to serve. The engines share the checkpoint's weights, and nothing else.

    Each is made once, when it is first asked for: decode's slots take memory.
    """

    checkpoint: Checkpoint
    max_seq_len: int
    slots: int
    ar_steps: int

    @cached_property
    def grammars(self) -> Grammars | None:
        """What holds answers to a grammar, for both engines; None: nothing here can."""
        checkpoint = self.checkpoint
        return grammars_of(checkpoint.tokenizer, checkpoint.config.vocab_size, checkpoint.eos_ids)

    @cached_property
    def prefill(self) -> TorchPrefill:
        """Computes prompts."""
        return TorchPrefill(self.checkpoint, max_seq_len=self.max_seq_len, grammars=self.grammars)

    @cached_property
    def decode(self) -> TorchDecode:
        """Computes answers.

        :raises ~tilert_stream.errors.ConfigError: ``slots`` or ``ar_steps`` is below 1.
        """
        return TorchDecode(
            self.checkpoint,
            slots=self.slots,
            max_seq_len=self.max_seq_len,
            ar_steps=self.ar_steps,
            grammars=self.grammars,
        )


def build(
    path: Path,
    *,
    slots: int = 4,
    max_seq_len: int | None = None,
    ar_steps: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
) -> Built:
    """Load a model for its engines.

    :param max_seq_len: tokens of prompt and answer together; None: the model's own, at most 4096.
    :param ar_steps: steps of a chain; None: 8 on CUDA and 1 on a CPU, where reading a token back
        costs nothing, and a chain would only hold it.
    :param device: ``auto`` (CUDA where there is one), ``cpu``, ``cuda``, ``cuda:1`` …
    :param dtype: ``auto`` (bfloat16 on CUDA, float32 elsewhere), ``float32``, ``bfloat16``,
        ``float16``.
    :param threads: CPU threads of one operation, for the whole process; None: torch's choice.
    :raises ~tilert_stream.errors.ConfigError: an option or the model is wrong.
    """
    target = _device(device)
    if threads is not None:
        if threads < 1:
            raise ConfigError(f"threads is {threads}; it must be at least 1")
        torch.set_num_threads(threads)
    checkpoint = load(path, dtype=_dtype(dtype, target), device=target)
    if max_seq_len is None:
        max_seq_len = checkpoint.default_max_seq_len
    if ar_steps is None:
        ar_steps = 8 if target.type == "cuda" else 1
    check_window(checkpoint, max_seq_len)
    return Built(checkpoint, max_seq_len, slots, ar_steps)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}; give auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; give auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, torch sees {torch.cuda.device_count()} CUDA devices; "
            "give cpu, or install a torch built for CUDA"
        )
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"dtype is {name!r}; give auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
