"""The streaming host for prefill/decode-disaggregated LLM serving.

A ``Pipeline`` is the life of a request; a ``Service`` runs it; ``tilert_stream.asgi.App`` puts it
on the wire. Neither torch nor a transport is imported before something asks for it by name.
"""

from .events import (
    Finished,
    GenerateRequest,
    KVReady,
    Limits,
    Prefilled,
    Reserved,
    Sampling,
    TextDelta,
    TokenBatch,
)
from .pipeline import Pipeline
from .service import Service

__version__ = "0.1.0"

__all__ = (
    "Finished",
    "GenerateRequest",
    "KVReady",
    "Limits",
    "Pipeline",
    "Prefilled",
    "Reserved",
    "Sampling",
    "Service",
    "TextDelta",
    "TokenBatch",
    "__version__",
)
