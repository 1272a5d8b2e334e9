"""A loaded model: everything that engines and the front of the server need of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilert_engine.models.description import ModelDescription

if TYPE_CHECKING:
    from .weights import Weights

__all__ = ("Checkpoint",)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(ModelDescription):
    """A model in memory. Immutable; prefill and decode share it."""

    weights: Weights
