"""How a hand-off of a KV cache fails, each with the answer that the client gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_stream.errors import AuthenticationFailed, TilertStreamError

if TYPE_CHECKING:
    from .layout import Difference

__all__ = (
    "ControlError",
    "FrameError",
    "GrantGone",
    "HandOffFailed",
    "HandshakeRefused",
    "MalformedMessage",
    "OutOfOrder",
    "PeerLost",
    "PromptMismatch",
    "RequestInUse",
    "SignatureInvalid",
    "SignatureMisdirected",
)


class ControlError(TilertStreamError):
    """Base of what goes wrong between two nodes."""

    status = 502
    code = "kv_transfer_failed"


class FrameError(ControlError):
    """The bytes are no frame: garbage, cut short, too long or too deep. The connection is over."""

    code = "control_garbage"


class MalformedMessage(ControlError):
    """A field is missing or has a wrong type or value; ``param`` names it."""

    code = "control_malformed"


class OutOfOrder(ControlError):
    """A message, or a call, that the state of the exchange does not lead to."""

    code = "control_out_of_order"


class HandshakeRefused(ControlError):
    """The two nodes do not fit together; nothing has been written.

    :param differences: field by field, as the node that raises this sees them.
    """

    status = 503
    code = "kv_handshake_refused"

    def __init__(self, message: str, differences: tuple[Difference, ...] = ()) -> None:
        super().__init__(message)
        self.differences = differences


class PeerLost(ControlError):
    """The other node has gone: its connection ended, or it has been silent for too long."""

    status = 503
    code = "kv_peer_lost"
    retryable = True


class HandOffFailed(ControlError):
    """One of the two nodes gave this hand-off up; the message has its reason."""


class PromptMismatch(ControlError):
    """Prefill would hand over the KV cache of another prompt than the request's own."""

    code = "kv_prompt_mismatch"


class GrantGone(ControlError):
    """The grant has expired, was released, or its KV cache has been taken already."""

    status = 410
    code = "kv_grant_gone"
    retryable = True


class RequestInUse(ControlError):
    """A live request has the same id."""

    status = 409
    type = "invalid_request_error"
    code = "request_in_use"


class SignatureInvalid(AuthenticationFailed):
    """The request between two nodes is not signed with this cluster's key."""

    code = "invalid_cluster_signature"


class SignatureMisdirected(SignatureInvalid):
    """The request is signed with this cluster's key, for another node or before a restart."""

    code = "cluster_signature_misdirected"
