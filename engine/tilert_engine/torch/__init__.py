"""Llama-family models on torch: a path in, a prefill and a decode engine out.

The libraries it needs are an extra of the distribution; importing this package without them says
how to install them.
"""

from __future__ import annotations

import os

from tilert_stream.errors import ConfigError

# OpenMP reads this when torch loads it. Its threads spin at a barrier by default: where cores are
# shared (with the event loop, or a client on the same machine) they burn the time that the thread
# they wait for needs. Measured on two busy cores: 5 tokens/s spinning, 23 sleeping.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

try:
    import gguf as _gguf
    import numpy as _numpy
    import safetensors as _safetensors
    import torch as _torch
except ImportError as error:
    raise ConfigError(
        f"the torch engine needs the package {error.name!r}; "
        "install it with: pip install 'tilert-stream[engine]'"
    ) from error

from .build import Built, build
from .checkpoint import Checkpoint
from .decode import DecodeSequence, TorchDecode
from .kv_cache import KVCache
from .load import load
from .prefill import PrefillOutput, PrefillRun, TorchPrefill

__all__ = (
    "Built",
    "Checkpoint",
    "DecodeSequence",
    "KVCache",
    "PrefillOutput",
    "PrefillRun",
    "TorchDecode",
    "TorchPrefill",
    "build",
    "load",
)

del _gguf, _numpy, _safetensors, _torch
