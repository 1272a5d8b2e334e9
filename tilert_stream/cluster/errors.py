"""What goes wrong between a router and its nodes, beyond what any HTTP client can meet."""

from __future__ import annotations

from ..errors import InvalidRequest
from ..http.client.errors import UpstreamError

__all__ = (
    "DecodeFailed",
    "HandOverLost",
    "HandshakeRefused",
    "LayoutMismatch",
    "NodeFailed",
    "NodeRefused",
    "ReservationLost",
    "Unprocessable",
)


class DecodeFailed(UpstreamError):
    """The decode node gave the request up: its engine failed, or the KV cache never came."""

    code = "decode_failed"


class HandshakeRefused(UpstreamError):
    """A prefill and a decode node do not fit together; its message says why."""

    status = 503
    code = "kv_handshake_refused"


class HandOverLost(UpstreamError):
    """A prefill and a decode node do not reach each other, or one has gone."""

    status = 503
    code = "kv_peer_lost"
    retryable = True


class LayoutMismatch(HandshakeRefused):
    """The same, as the decode node has said before anything was computed."""


class NodeFailed(UpstreamError):
    """A node answered a 5xx that is about itself, such as an engine that has died under it."""


class NodeRefused(UpstreamError):
    """A node refused the router itself: a key, a path or a model's name is configured wrongly."""

    code = "upstream_refused"


class ReservationLost(UpstreamError):
    """The decode node no longer holds the promised slot: it expired, or the node restarted."""

    status = 503
    code = "reservation_lost"
    retryable = True


class Unprocessable(InvalidRequest):
    """A request that prefill understands and cannot carry out."""

    status = 422
    code = "unprocessable"
