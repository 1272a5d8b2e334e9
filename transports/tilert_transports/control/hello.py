"""The opening of a control connection: who each node is, and whether the two fit together.

The decode node sends CHALLENGE, the prefill node its HELLO, the decode node its own HELLO or
REFUSED.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

from .errors import HandshakeRefused
from .layout import LayoutDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .fields import Fields
    from .frames import JSONObject

__all__ = (
    "MAGIC",
    "NONCE_BYTES",
    "PROTOCOL",
    "Challenge",
    "Difference",
    "Hello",
    "Refused",
    "Role",
    "layout_mismatch",
    "mismatch",
)

MAGIC: Final = "tilert-stream"
PROTOCOL: Final = 1
NONCE_BYTES: Final = 32

Role: TypeAlias = Literal["prefill", "decode"]


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
            (Difference("protocol", str(PROTOCOL), str(protocol), _FIXES["protocol"]),),
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
    layout: LayoutDescription
    transport: str
    """The transport's registered name: ``shm``, ``tcp``, ``nixl``."""
    card: bytes
    """What the other side's transport needs to connect; opaque here."""
    nonce: bytes
    """32 random bytes, new for every connection; the decode node's is its challenge's."""

    def to_json(self) -> JSONObject:
        """The message as a JSON object, without a proof."""
        return {
            "type": self.TYPE,
            "magic": MAGIC,
            "protocol": PROTOCOL,
            "node": self.node,
            "role": self.role,
            "incarnation": self.incarnation,
            "layout": self.layout.to_json(),
            "transport": self.transport,
            "card": base64.b64encode(self.card).decode(),
            "nonce": self.nonce.hex(),
        }

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
            layout=LayoutDescription.parse(fields.nested("layout")),
            transport=fields.text("transport"),
            card=fields.blob("card"),
            nonce=fields.hexadecimal("nonce", NONCE_BYTES),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two nodes do not fit, and what to change."""

    field: str
    ours: str
    theirs: str
    fix: str

    def turned(self) -> Difference:
        """The same as the other side sees it."""
        return Difference(self.field, self.theirs, self.ours, self.fix)

    def to_json(self) -> JSONObject:
        """The object that stands in a REFUSED."""
        return {"field": self.field, "ours": self.ours, "theirs": self.theirs, "fix": self.fix}

    @classmethod
    def parse(cls, fields: Fields) -> Difference:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(*(fields.prose(name) for name in ("field", "ours", "theirs", "fix")))

    def __str__(self) -> str:
        return f"{self.field}: ours is {self.ours}, theirs {self.theirs}; {self.fix}"


@dataclass(frozen=True, slots=True)
class Refused:
    """The decode node's last word on a connection that it does not take."""

    TYPE: ClassVar = "refused"

    reason: str
    differences: tuple[Difference, ...] = ()
    """As the one who sends this sees them."""

    def to_json(self) -> JSONObject:
        """The message as a JSON object."""
        return {
            "type": self.TYPE,
            "reason": self.reason,
            "differences": [difference.to_json() for difference in self.differences],
        }

    @classmethod
    def parse(cls, fields: Fields) -> Refused:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        found = tuple(Difference.parse(item) for item in fields.objects("differences"))
        return cls(fields.prose("reason"), found)


_FIXES: Final = {
    "protocol": "run the same release of tilert_stream on both nodes",
    "role": "give the control port of a decode node",
    "transport": "give both nodes the same --transport",
    "layout.kind": "serve the same model on both nodes (--model)",
    "layout.version": "serve the same model on both nodes (--model)",
    "layout.dtype": "give both nodes the same --kv-cache-dtype",
    "layout.block_size": "give both nodes the same --block-size",
    "layout.draft_layers": (
        "give both nodes the draft layer or neither: --with-mtp on the decode node,"
        ' --speculative-config {"method":"mtp","num_speculative_tokens":1} on prefill'
    ),
    "layout.layers": "serve the same model on both nodes (--model)",
    "layout.sender_ranks": "set prefill's --tensor-parallel-size as the decode node expects it",
    "layout.planes": "give both nodes the same --model and --kv-cache-dtype",
}


def mismatch(ours: Hello, theirs: Hello) -> tuple[Difference, ...]:
    """Why the two cannot hand over to each other; empty if they can."""
    roles = (Difference("role", ours.role, theirs.role, _FIXES["role"]),)
    return (
        *(roles if ours.role == theirs.role else ()),
        *_differences({"transport": (ours.transport, theirs.transport)}),
        *layout_mismatch(ours.layout, theirs.layout),
    )


def layout_mismatch(ours: LayoutDescription, theirs: LayoutDescription) -> tuple[Difference, ...]:
    """Why a cache of the one cannot be taken for one of the other; empty if it can.

    ``max_seq_len`` is not compared: a prompt's own length is checked at its reservation, and
    again when its sender claims the grant.
    """
    return _differences(
        {
            "layout.kind": (ours.kind, theirs.kind),
            "layout.version": (ours.version, theirs.version),
            "layout.dtype": (ours.dtype, theirs.dtype),
            "layout.block_size": (ours.block_size, theirs.block_size),
            "layout.layers": (ours.layers, theirs.layers),
            "layout.draft_layers": (ours.draft_layers, theirs.draft_layers),
            "layout.sender_ranks": (_ranks(ours), _ranks(theirs)),
            "layout.planes": (_planes(ours), _planes(theirs)),
        }
    )


def _differences(pairs: Mapping[str, tuple[str | int, str | int]]) -> tuple[Difference, ...]:
    return tuple(
        Difference(field, str(own), str(other), _FIXES[field])
        for field, (own, other) in pairs.items()
        if own != other
    )


def _ranks(layout: LayoutDescription) -> str:
    return ", ".join(map(str, sorted(layout.sender_ranks)))


def _planes(layout: LayoutDescription) -> str:
    return "; ".join(map(str, layout.planes))
