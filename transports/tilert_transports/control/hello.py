"""The opening of a control connection: who each node is, and whether the two fit together.

The decode node sends CHALLENGE, the prefill node its HELLO, the decode node its own HELLO or
REFUSED.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

from .errors import HandshakeRefused
from .grant_id import GrantId
from .layout import Difference, differences

if TYPE_CHECKING:
    from .fields import Fields
    from .frames import JSONObject
    from .layout import Description

__all__ = (
    "MAGIC",
    "NONCE_BYTES",
    "PROTOCOL",
    "Challenge",
    "Hello",
    "Refused",
    "Role",
    "mismatch",
)

MAGIC: Final = "tilert-stream"
PROTOCOL: Final = 1
NONCE_BYTES: Final = 32

Role: TypeAlias = Literal["prefill", "decode"]

_SAME_RELEASE: Final = "run the same release of tilert_stream on both nodes"
_SAME_TRANSPORT: Final = "give both nodes the same --transport"
_OTHER_ROLE: Final = "give the control port of a decode node"


def _check_protocol(fields: Fields) -> None:
    """Look at what tells a stranger or another release first: its other fields may differ.

    :raises MalformedMessage: there is no magic word, or no protocol number.
    :raises HandshakeRefused: it is another protocol.
    """
    magic = fields.text("magic")
    if magic != MAGIC:
        hint = "; give that node's dialect, tilert-pd" if magic == "tilert-pd" else ""
        raise HandshakeRefused(f"the peer's magic word is {magic!r}, ours {MAGIC!r}{hint}")
    protocol = fields.integer("protocol")
    if protocol != PROTOCOL:
        raise HandshakeRefused(
            f"the peer speaks protocol {protocol}, this node {PROTOCOL};"
            " run the same release of tilert_stream on both",
            (Difference("protocol", str(PROTOCOL), str(protocol), _SAME_RELEASE),),
        )


@dataclass(frozen=True, slots=True)
class Challenge:
    """The decode node's first words: nothing about it but what the other side needs to answer."""

    TYPE: ClassVar = "challenge"

    nonce: bytes
    """32 random bytes, new for every connection."""
    keyed: bool
    """Whether this node asks for proof of the cluster's key."""

    def to_json(self) -> JSONObject:
        """The message as a JSON object."""
        return {
            "type": self.TYPE,
            "magic": MAGIC,
            "protocol": PROTOCOL,
            "nonce": self.nonce.hex(),
            "keyed": self.keyed,
        }

    @classmethod
    def parse(cls, fields: Fields) -> Challenge:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        :raises HandshakeRefused: it is another protocol.
        """
        _check_protocol(fields)
        return cls(fields.hexadecimal("nonce", NONCE_BYTES), fields.flag("keyed"))


@dataclass(frozen=True, slots=True)
class Hello:
    """A node's description of itself."""

    TYPE: ClassVar = "hello"

    node: str
    """Its name, for people."""
    role: Role
    incarnation: str
    """New with every start of the process: a restarted node is another node."""
    layout: Description
    """Of its KV caches: all that must be equal on both sides."""
    max_seq_len: int
    """Tokens that fit; on the decode node also the rows that a landing region has a layer."""
    transport: str
    """The transport's registered name: ``shm``, ``tcp``, ``nixl``."""
    card: bytes
    """What the other side's transport needs to connect; opaque here."""
    nonce: bytes
    """32 random bytes, new for every connection; the decode node's is its challenge's."""
    grant: GrantId | None = None
    """What prefill connects for: its request fails at once if the two nodes do not fit together."""

    def to_json(self) -> JSONObject:
        """The message as a JSON object, without a proof."""
        content: JSONObject = {
            "type": self.TYPE,
            "magic": MAGIC,
            "protocol": PROTOCOL,
            "node": self.node,
            "role": self.role,
            "incarnation": self.incarnation,
            "layout": dict(self.layout),
            "max_seq_len": self.max_seq_len,
            "transport": self.transport,
            "card": base64.b64encode(self.card).decode(),
            "nonce": self.nonce.hex(),
        }
        if self.grant is not None:
            content["grant"] = self.grant.to_json()
        return content

    @classmethod
    def parse(cls, fields: Fields) -> Hello:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        :raises HandshakeRefused: it is another protocol.
        """
        _check_protocol(fields)
        role: Role = "prefill" if fields.text("role") == "prefill" else "decode"
        if fields.text("role") != role:
            fields.refuse("role", "'prefill' or 'decode'")
        return cls(
            node=fields.text("node"),
            role=role,
            incarnation=fields.text("incarnation"),
            layout=fields.scalars("layout"),
            max_seq_len=fields.integer("max_seq_len", least=1),
            transport=fields.text("transport"),
            card=fields.blob("card"),
            nonce=fields.hexadecimal("nonce", NONCE_BYTES),
            grant=_grant(fields),
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """The last word on a connection: the decode node's, or prefill's in place of its HELLO."""

    TYPE: ClassVar = "refused"

    reason: str
    differences: tuple[Difference, ...] = ()
    """As the one who sends this sees them."""
    grant: GrantId | None = None
    """As in a HELLO."""

    def to_json(self) -> JSONObject:
        """The message as a JSON object."""
        content: JSONObject = {
            "type": self.TYPE,
            "reason": self.reason,
            "differences": [difference.to_json() for difference in self.differences],
        }
        if self.grant is not None:
            content["grant"] = self.grant.to_json()
        return content

    @classmethod
    def parse(cls, fields: Fields) -> Refused:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        found = tuple(Difference.parse(item) for item in fields.objects("differences"))
        return cls(fields.prose("reason"), found, _grant(fields))


def _grant(fields: Fields) -> GrantId | None:
    return GrantId.parse(fields.nested("grant")) if fields.has("grant") else None


def mismatch(ours: Hello, theirs: Hello) -> tuple[Difference, ...]:
    """Why the two cannot hand over to each other; empty if they can.

    ``max_seq_len`` is not compared: a prompt's own length is checked at its reservation, and
    again when its sender claims the grant.
    """
    found = list(differences(ours.layout, theirs.layout))
    if ours.transport != theirs.transport:
        found.insert(0, Difference("transport", ours.transport, theirs.transport, _SAME_TRANSPORT))
    if ours.role == theirs.role:
        found.insert(0, Difference("role", ours.role, theirs.role, _OTHER_ROLE))
    return tuple(found)
