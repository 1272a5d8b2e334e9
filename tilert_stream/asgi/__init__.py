"""The ASGI side: HTTP requests in, server-sent events or JSON out; in any server, in any app."""

from .app import App
from .response import EVENT_STREAM, JSON, ErrorResponse, StreamResponse

__all__ = ("EVENT_STREAM", "JSON", "App", "ErrorResponse", "StreamResponse")
