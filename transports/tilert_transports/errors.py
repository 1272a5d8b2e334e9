"""Every way a transfer can fail.

Two questions decide what a caller does next: may the same write be tried again (``retryable``), and
can bytes of it still land (``settled`` is False)? A range whose write is not settled belongs to
nobody: both sides keep it out of use until ``Transport.drain`` answers True.
"""

from __future__ import annotations

from typing import ClassVar

from tilert_stream.errors import TilertStreamError

__all__ = (
    "DeadlineExceeded",
    "HandshakeMismatch",
    "PeerLost",
    "PeerStale",
    "PlanInvalid",
    "RegionInvalid",
    "TransferFailed",
    "TransportClosed",
    "TransportError",
    "TransportNotFound",
    "TransportUnavailable",
)


class TransportError(TilertStreamError):
    """Base of the transports' errors.

    :param message: one sentence: the field, the value it got, the value it needs, the fix.
    :param settled: False if bytes of the write can still land after this was raised.
    """

    status: ClassVar[int] = 502
    code: ClassVar[str] = "kv_transfer_failed"

    def __init__(self, message: str, *, settled: bool = True) -> None:
        super().__init__(message)
        self.settled = settled


# --- before anything moves -------------------------------------------------------------------


class PlanInvalid(TransportError):
    """A row of a plan is malformed or leaves its region. Nothing has moved."""

    status = 500
    code = "kv_plan_invalid"


class RegionInvalid(TransportError):
    """A buffer that cannot be registered, or a region that the transport does not know."""

    status = 500
    code = "kv_region_invalid"


class HandshakeMismatch(TransportError):
    """The two sides cannot work together: another protocol, version, host or a damaged card."""

    status = 503
    code = "kv_handshake_mismatch"


class PeerStale(TransportError):
    """The card is of an earlier life of the peer: it has restarted. Fetch its new card."""

    status = 503
    code = "kv_peer_stale"
    retryable = True


class TransportNotFound(TransportError):
    """No transport of that name; the message lists the known ones."""

    status = 500
    code = "kv_transport_not_found"


class TransportUnavailable(TransportError):
    """The transport's library is not installed or does not load; the cause is chained."""

    status = 500
    code = "kv_transport_unavailable"


# --- while bytes move ------------------------------------------------------------------------


class PeerLost(TransportError):
    """The peer's process or its host has gone."""

    status = 503
    code = "kv_peer_lost"
    retryable = True


class TransferFailed(TransportError):
    """The transport reports that a write failed."""

    retryable = True


class DeadlineExceeded(TransportError):
    """The write was not finished at its deadline and has been given up."""

    status = 504
    code = "kv_transfer_timeout"
    retryable = True


class TransportClosed(TransportError):
    """The transport, or its connection to the peer, was closed before the write was finished."""

    status = 503
    code = "kv_transport_closed"
