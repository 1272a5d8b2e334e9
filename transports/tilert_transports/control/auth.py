"""Proof that a peer holds the cluster's key, without ever sending it.

HMAC-SHA256 (RFC 2104) on the opening of a control connection, and on each HTTP request between a
router and a node. It keeps strangers out; it hides nothing, and does not guard what follows on a
connection against somebody who can alter packets: that is the network's task.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from tilert_stream.errors import ConfigError

from .errors import SignatureInvalid, SignatureMisdirected
from .hello import NONCE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hello import Role

__all__ = ("NODE_HEADER", "SIGNATURE_HEADER", "ClusterKey", "RequestVerifier", "new_nonce")

SIGNATURE_HEADER: Final = "tilert-signature"
"""``to=<32 hex digits>,t=<seconds since 1970>,n=<32 hex digits>,s=<64 hex digits>``."""
NODE_HEADER: Final = "tilert-node"
"""Of a refusal: the ``to`` that this node's signatures need."""

_LEAST_BYTES: Final = 16
_SIGNATURE: Final = re.compile(
    r"to=([0-9a-f]{32}),t=([0-9]{1,12}),n=([0-9a-f]{32}),s=([0-9a-f]{64})"
)


def new_nonce() -> bytes:
    """A nonce for one connection."""
    return secrets.token_bytes(NONCE_BYTES)


class ClusterKey:
    """The secret that all nodes of a cluster share (``--cluster-key``).

    :raises ~tilert_stream.errors.ConfigError: it is shorter than 16 bytes.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        if len(self._secret) < _LEAST_BYTES:
            raise ConfigError(
                f"cluster_key has {len(self._secret)} bytes; it needs {_LEAST_BYTES} or more,"
                " such as the output of `openssl rand -hex 32`.",
                param="cluster_key",
            )

    def __repr__(self) -> str:
        return "ClusterKey(…)"

    def proof(self, role: Role, decode_nonce: bytes, prefill_nonce: bytes, hello: bytes) -> str:
        """What the node in ``role`` sends with its HELLO, whose other fields are ``hello``.

        The role binds it to a direction: a proof cannot be sent back to the one who made it.
        """
        return self._mac(b"hello", role.encode(), decode_nonce, prefill_nonce, hello)

    def sign(
        self, node: str, method: str, target: str, body: bytes, *, now: float | None = None
    ) -> str:
        """The value of ``SIGNATURE_HEADER`` for one HTTP request, good once.

        :param node: whom it is for; see ``RequestVerifier.node``.
        :param target: path and query, as they stand in the request line.
        :param now: seconds since 1970; None asks the clock.
        """
        stamp = str(int(time.time() if now is None else now))
        nonce = secrets.token_hex(16)
        signature = self.request_signature(node, method, target, body, stamp, nonce)
        return f"to={node},t={stamp},n={nonce},s={signature}"

    def request_signature(
        self, node: str, method: str, target: str, body: bytes, stamp: str, nonce: str
    ) -> str:
        """The ``s`` of the header; the first and the last two are its ``to``, ``t`` and ``n``."""
        parts = (node, method, target, stamp, nonce)
        return self._mac(
            b"http", *(part.encode("utf-8", "surrogateescape") for part in parts), body
        )

    def _mac(self, *parts: bytes) -> str:
        # Each part behind its length: no two lists of parts make the same input.
        mac = hmac.new(self._secret, b"tilert-stream 1", "sha256")
        for part in parts:
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.hexdigest()


class RequestVerifier:
    """Checks the signatures of HTTP requests: each is for this node, and none comes twice.

    Belongs to one thread. It remembers the nonces of the last ``2 * tolerance`` seconds, only of
    requests with the right key: a stranger cannot fill it.

    :param tolerance: seconds by which the clocks of two nodes may differ.
    :param clock: seconds since 1970.
    """

    __slots__ = ("_clock", "_key", "_order", "_seen", "_tolerance", "node")

    def __init__(
        self, key: ClusterKey, *, tolerance: float = 30, clock: Callable[[], float] = time.time
    ) -> None:
        self.node = secrets.token_hex(16)
        """Whom signatures must be for. It lives as long as the memory of nonces does: what a node
        has heard is good for no other one, nor for itself once it has forgotten."""
        self._key = key
        self._tolerance = tolerance
        self._clock = clock
        self._seen = set[str]()
        self._order = deque[tuple[float, str]]()

    def check(self, header: str | None, method: str, target: str, body: bytes) -> None:
        """Compare in constant time.

        :param header: the value of ``SIGNATURE_HEADER``; None where there is none.
        :raises SignatureInvalid: it is missing, wrong, too old, or was used before.
        :raises SignatureMisdirected: it is for another node.
        """
        if header is None:
            raise SignatureInvalid(
                f"this node asks for the {SIGNATURE_HEADER} header: start the caller with the"
                " --cluster-key that this node has"
            )
        match = _SIGNATURE.fullmatch(header)
        if match is None:
            raise SignatureInvalid(
                f"the {SIGNATURE_HEADER} header has not the form to=…,t=…,n=…,s=…"
            )
        node, stamp, nonce, given = match.groups()
        expected = self._key.request_signature(node, method, target, body, stamp, nonce)
        if not hmac.compare_digest(given, expected):
            raise SignatureInvalid(
                "the request is not signed with this node's cluster key, or was altered on its"
                " way: give both the same --cluster-key"
            )
        if node != self.node:
            raise SignatureMisdirected(
                f"the request is signed for node {node}; this is node {self.node}: sign it for the"
                f" {NODE_HEADER} that this answer names (a node that has restarted has a new one)"
            )
        now = self._clock()
        apart = now - int(stamp)
        if abs(apart) > self._tolerance:
            raise SignatureInvalid(
                f"the request was signed {abs(apart):.0f} s {'ago' if apart > 0 else 'ahead'};"
                f" {self._tolerance:g} s are allowed: set the clocks of both nodes"
            )
        self._forget(now)
        if nonce in self._seen:
            raise SignatureInvalid("the request's signature was used before")
        self._seen.add(nonce)
        self._order.append((now + 2 * self._tolerance, nonce))

    def _forget(self, now: float) -> None:
        while self._order and self._order[0][0] < now:
            self._seen.discard(self._order.popleft()[1])
