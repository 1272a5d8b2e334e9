"""Where ``tiny-glm5`` is: the small model of GLM-5's shape that is shipped with this package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from .glm_description import describe_glm

if TYPE_CHECKING:
    from .glm_description import GLMDescription

__all__ = ("TINY_GLM5", "TINY_GLM5_NAME", "describe_tiny_glm5")

TINY_GLM5: Final = Path(__file__).parents[1] / "glm" / "tiny_glm5"
TINY_GLM5_NAME: Final = "tiny-glm5"


def describe_tiny_glm5() -> GLMDescription:
    """The model without its weights."""
    return describe_glm(TINY_GLM5, TINY_GLM5_NAME)
