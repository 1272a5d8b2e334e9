"""Models as files, without torch: what a server's front, a KV layout and an engine begin with."""

from __future__ import annotations

from tilert_stream.errors import ConfigError

try:
    import gguf as _gguf
    import numpy as _numpy
except ImportError as error:
    raise ConfigError(
        f"reading a model needs the package {error.name!r}; "
        "install it with: pip install 'tilert-stream[engine]'"
    ) from error

from .config import ModelConfig
from .describe import describe
from .description import ModelDescription
from .glm_config import GLMConfig
from .glm_description import GLMDescription, describe_glm
from .tiny_glm5 import describe_tiny_glm5

__all__ = (
    "GLMConfig",
    "GLMDescription",
    "ModelConfig",
    "ModelDescription",
    "describe",
    "describe_glm",
    "describe_tiny_glm5",
)

del _gguf, _numpy
