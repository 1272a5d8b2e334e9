"""TileRT's generators as a decode engine: a weights folder in, ``TileRTDecode`` out.

``device`` says what is called of TileRT, ``loops`` in which order, ``decode`` is the engine, and
``load`` brings the generator. TileRT itself is imported only there.
"""

from .decode import TileRTDecode, TileRTSequence
from .load import load_generator
from .models import MODELS, TileRTModel, find_model

__all__ = (
    "MODELS",
    "TileRTDecode",
    "TileRTModel",
    "TileRTSequence",
    "find_model",
    "load_generator",
)
