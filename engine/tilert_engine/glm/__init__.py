"""Models of GLM-5's shape on torch: a directory in, a prefill and a decode engine out.

``tiny-glm5``, the small one that is shipped here, is the default.
"""

from __future__ import annotations

from .build import Built, build
from .checkpoint import GLMCheckpoint
from .decode import GLMDecode, GLMSequence
from .prefill import GLMPrefill, GLMPrefillOutput, GLMPrefillRun

__all__ = (
    "Built",
    "GLMCheckpoint",
    "GLMDecode",
    "GLMPrefill",
    "GLMPrefillOutput",
    "GLMPrefillRun",
    "GLMSequence",
    "build",
)
