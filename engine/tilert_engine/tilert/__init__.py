"""TileRT's generators as a decode engine: a weights folder in, ``TileRTDecode`` out.

``device`` says what is called of TileRT, ``loops`` in which order, ``decode`` is the engine, and
``load`` brings the generator. TileRT itself is imported only there.
"""

from .decode import TileRTDecode, TileRTSequence
from .kv import TileRTKV
from .load import Loaded, ar_steps_from, load_generator
from .models import TileRTModel, find_model

__all__ = (
    "Loaded",
    "TileRTDecode",
    "TileRTKV",
    "TileRTModel",
    "TileRTSequence",
    "ar_steps_from",
    "find_model",
    "load_generator",
)
