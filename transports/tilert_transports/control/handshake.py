"""The opening as two state machines without I/O: objects in, objects out, the peer's HELLO at last.

::

    decode node                          prefill node
         │ ── CHALLENGE (nonce) ──────────────► │
         │ ◄────── HELLO (+ proof) or REFUSED ── │
         │ ── HELLO (+ proof) or REFUSED ─────► │

With a cluster key the decode node says nothing about itself before the other has proved that it
holds the key.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from .auth import new_nonce
from .errors import HandshakeRefused, MalformedMessage, OutOfOrder
from .fields import Fields, shown
from .grant_id import GrantId
from .hello import Challenge, Hello, Refused, mismatch
from .layout import describe
from .messages import Decline, to_json

if TYPE_CHECKING:
    from .auth import ClusterKey
    from .frames import JSONObject

__all__ = ("DecodeHandshake", "PrefillHandshake")


def _signed(content: JSONObject) -> bytes:
    """What a proof covers: the HELLO as it travels, fields of later releases included."""
    rest = {name: value for name, value in content.items() if name != "proof"}
    return orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)


def _typed(content: JSONObject, *expected: str) -> str:
    name = content.get("type")
    if not isinstance(name, str) or name not in expected:
        raise OutOfOrder(f"the peer opens with {shown(name)}; {' or '.join(expected)} is needed")
    return name


def _grant_in(content: JSONObject) -> GrantId | None:
    """The grant in an opening of any release; None where there is none that can be read."""
    try:
        return GrantId.parse(Fields("HELLO", content).nested("grant"))
    except MalformedMessage:
        return None


def _check(
    key: ClusterKey, peer: Hello, decode_nonce: bytes, prefill_nonce: bytes, content: JSONObject
) -> None:
    given = content.get("proof")
    expected = key.proof(peer.role, decode_nonce, prefill_nonce, _signed(content))
    if not isinstance(given, str):
        raise HandshakeRefused(
            "the peer has no cluster key, this node has one: give both the same --cluster-key"
        )
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise HandshakeRefused(
            "the peer's cluster key is another one: give both the same --cluster-key"
        )


def _with_proof(
    key: ClusterKey | None, hello: Hello, decode_nonce: bytes, prefill_nonce: bytes
) -> JSONObject:
    content = hello.to_json()
    if key is not None:
        signed = _signed(content)
        content["proof"] = key.proof(hello.role, decode_nonce, prefill_nonce, signed)
    return content


def _refused(refused: Refused, who: str) -> HandshakeRefused:
    differences = tuple(difference.turned() for difference in refused.differences)
    return HandshakeRefused(f"{who}: {describe(differences) or refused.reason}", differences)


class DecodeHandshake:
    """The decode node's side of one connection.

    :param hello: this node's own; a nonce is put into it.
    """

    __slots__ = ("_hello", "_key", "grant", "peer")

    def __init__(self, hello: Hello, key: ClusterKey | None = None) -> None:
        self._hello = replace(hello, nonce=new_nonce())
        self._key = key
        self.peer: Hello | None = None
        """The other node, once it has been taken."""
        self.grant: GrantId | None = None
        """What the other node came for, as soon as it has said so; nothing is proved by it."""

    def open(self) -> JSONObject:
        """The first object to send."""
        return Challenge(self._hello.nonce, self._key is not None).to_json()

    def receive(self, content: JSONObject) -> JSONObject:
        """Take the peer's HELLO; return this node's. Its REFUSED is raised.

        :raises MalformedMessage: a field is missing or wrong.
        :raises OutOfOrder: it is something else.
        :raises HandshakeRefused: it is another protocol, the key is not the same, or the nodes do
            not fit together.
        """
        self.grant = _grant_in(content)
        if _typed(content, Hello.TYPE, Refused.TYPE) == Refused.TYPE:
            refused = Refused.parse(Fields("REFUSED", content))
            raise _refused(refused, "the prefill node refuses this decode node")
        peer = Hello.parse(Fields("HELLO", content))
        nonces = (self._hello.nonce, peer.nonce)
        if self._key is not None:
            _check(self._key, peer, *nonces, content)
        differences = mismatch(self._hello, peer)
        if differences:
            raise HandshakeRefused(
                f"{peer.role} node {peer.node} does not fit: {describe(differences)}", differences
            )
        self.peer = peer
        return _with_proof(self._key, self._hello, *nonces)

    def refusal(self, error: HandshakeRefused) -> JSONObject:
        """What to send before the connection is closed because of ``error``."""
        return Refused(error.message, error.differences).to_json()


class PrefillHandshake:
    """The prefill node's side of one connection.

    :param hello: this node's own; a nonce is put into it.
    """

    __slots__ = ("_decode_nonce", "_hello", "_key", "_over", "peer")

    def __init__(self, hello: Hello, key: ClusterKey | None = None) -> None:
        self._hello = replace(hello, nonce=new_nonce())
        self._key = key
        self._decode_nonce: bytes | None = None
        self._over = False
        """The other side has had its last word."""
        self.peer: Hello | None = None
        """The other node, once the two have taken each other."""

    def receive(self, content: JSONObject) -> JSONObject | None:
        """Take CHALLENGE and return this node's HELLO; then take the peer's HELLO.

        :raises MalformedMessage: a field is missing or wrong.
        :raises OutOfOrder: it is something else.
        :raises HandshakeRefused: one of the two nodes does not take the other; differences are as
            this node sees them.
        """
        if self._decode_nonce is None:
            return self._answer(content)
        self._conclude(content, self._decode_nonce)
        return None

    def refusal(self, error: HandshakeRefused) -> JSONObject | None:
        """What to send before the connection is closed; None where the other side knows.

        The request that the connection was made for fails by it at once.
        """
        if self._over:
            return None
        grant = self._hello.grant
        if self._decode_nonce is None:
            return Refused(error.message, error.differences, grant).to_json()
        return None if grant is None else to_json(Decline.of(grant, error.message))

    def _answer(self, content: JSONObject) -> JSONObject:
        if "type" not in content and "magic" in content:
            # Another dialect's opening: its magic word tells more than a missing type.
            Challenge.parse(Fields("CHALLENGE", content))
        _typed(content, Challenge.TYPE)
        challenge = Challenge.parse(Fields("CHALLENGE", content))
        if challenge.keyed != (self._key is not None):
            ours, theirs = (
                ("no cluster key", "one") if challenge.keyed else ("a cluster key", "none")
            )
            raise HandshakeRefused(
                f"this node has {ours}, the peer has {theirs}:"
                " give both the same --cluster-key, or neither"
            )
        self._decode_nonce = challenge.nonce
        return _with_proof(self._key, self._hello, challenge.nonce, self._hello.nonce)

    def _conclude(self, content: JSONObject, decode_nonce: bytes) -> None:
        if _typed(content, Hello.TYPE, Refused.TYPE) == Refused.TYPE:
            self._over = True
            refused = Refused.parse(Fields("REFUSED", content))
            raise _refused(refused, "the decode node refuses this prefill node")
        peer = Hello.parse(Fields("HELLO", content))
        if self._key is not None:
            _check(self._key, peer, decode_nonce, self._hello.nonce, content)
        differences = mismatch(self._hello, peer)
        if differences:
            raise HandshakeRefused(
                f"{peer.role} node {peer.node} does not fit: {describe(differences)}", differences
            )
        self.peer = peer
