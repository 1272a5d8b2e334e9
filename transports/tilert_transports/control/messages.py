"""The messages of one hand-off, in the order in which they travel.

============  ==================  =================================================================
message       from                says
============  ==================  =================================================================
``Claim``     prefill             I am about to write for this grant.
``Decline``   prefill             Nothing will come for this grant.
``Grant``     decode              Write here; until this lease runs out.
``Progress``  prefill, optional   So many planes have landed.
``Commit``    prefill, last word  All has landed, and nothing more comes.
``Abort``     either              I give it up.
``Released``  either, last word   I have let go of it.
``Ping``      either              Are you there? Also renews the leases of the one who asks.
``Pong``      either              Yes.
============  ==================  =================================================================
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from .decline import Decline
from .errors import MalformedMessage
from .fields import Fields, shown
from .grant_id import GrantId
from .prompt import PromptIdentity

if TYPE_CHECKING:
    from .frames import JSONObject

__all__ = (
    "Abort",
    "Claim",
    "Commit",
    "Decline",
    "Grant",
    "Message",
    "Ping",
    "Pong",
    "Progress",
    "Released",
    "parse_message",
    "to_json",
)

_CRC32: Final = 2**32 - 1
_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Claim:
    """A prefill rank's claim on a grant that the decode node gave to the router."""

    TYPE: ClassVar = "claim"

    request: str
    incarnation: str
    """The decode node's, as the grant has it: a restarted node counts its generations anew."""
    generation: int
    rank: int
    """The tensor-parallel rank that this connection writes for."""
    tokens: int
    """Of the prompt."""
    nbytes: int
    """That this rank will write."""
    last_token: int
    """The prompt's last token id."""
    digest: str | None = None
    """Of the prompt's ids, as ``PromptIdentity``; None: a dialect that does not tell it."""

    @property
    def grant(self) -> GrantId:
        """Which one."""
        return GrantId(self.request, self.incarnation, self.generation)

    @property
    def prompt(self) -> PromptIdentity:
        """What the decode node compares: another prompt's cache is never let in."""
        return PromptIdentity(self.tokens, self.last_token, self.digest)

    @classmethod
    def parse(cls, fields: Fields) -> Claim:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(
            request=fields.text("request"),
            incarnation=fields.text("incarnation"),
            generation=fields.integer("generation", least=1),
            rank=fields.integer("rank"),
            tokens=fields.integer("tokens", least=1),
            nbytes=fields.integer("nbytes", least=1),
            last_token=fields.integer("last_token"),
            digest=(
                fields.hexadecimal("digest", _DIGEST_BYTES).hex() if fields.has("digest") else None
            ),
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to write into a landing region. Answers a claim; its first fields repeat it."""

    TYPE: ClassVar = "grant"

    request: str
    generation: int
    rank: int
    region: int
    """The landing region's id."""
    offset: int
    """Bytes from the start of the registered memory to the region."""
    nbytes: int
    """The region's size."""
    ttl: float
    """Seconds, from the moment this was sent, within which the writes end or a ping comes."""

    @classmethod
    def parse(cls, fields: Fields) -> Grant:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(
            request=fields.text("request"),
            generation=fields.integer("generation", least=1),
            rank=fields.integer("rank"),
            region=fields.integer("region"),
            offset=fields.integer("offset"),
            nbytes=fields.integer("nbytes", least=1),
            ttl=fields.seconds("ttl"),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """The first ``planes`` planes have landed, in the layout's order, and stay as they are."""

    TYPE: ClassVar = "progress"

    generation: int
    planes: int

    @classmethod
    def parse(cls, fields: Fields) -> Progress:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(fields.integer("generation", least=1), fields.integer("planes"))


@dataclass(frozen=True, slots=True)
class Commit:
    """All bytes of this rank are visible at the decode node. The sender's last word."""

    TYPE: ClassVar = "commit"

    generation: int
    nbytes: int
    """As claimed."""
    checksum: int | None = None
    """CRC-32 (as ``zlib.crc32``) of what was written, in the copy plan's order."""

    @classmethod
    def parse(cls, fields: Fields) -> Commit:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(
            generation=fields.integer("generation", least=1),
            nbytes=fields.integer("nbytes", least=1),
            checksum=fields.integer("checksum", most=_CRC32) if fields.has("checksum") else None,
        )


@dataclass(frozen=True, slots=True)
class Abort:
    """The one who sends this gives the generation up.

    From the decode node it is the last word, and asks the writer to stop. From prefill it is the
    last word if ``settled``; otherwise ``Released`` follows when nothing can land any more.
    """

    TYPE: ClassVar = "abort"

    generation: int
    reason: str
    settled: bool = True
    unwanted: bool = False
    """Nothing has failed: nobody waits for this KV cache any more."""

    @classmethod
    def parse(cls, fields: Fields) -> Abort:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(
            fields.integer("generation", least=1),
            fields.prose("reason"),
            fields.flag("settled"),
            unwanted=fields.flag("unwanted") if fields.has("unwanted") else False,
        )


@dataclass(frozen=True, slots=True)
class Released:
    """The generation is over for the one who sends this: it neither writes nor waits any more."""

    TYPE: ClassVar = "released"

    generation: int

    @classmethod
    def parse(cls, fields: Fields) -> Released:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(fields.integer("generation", least=1))


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a ``Pong`` with the same number."""

    TYPE: ClassVar = "ping"

    number: int

    @classmethod
    def parse(cls, fields: Fields) -> Ping:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(fields.integer("number"))


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a ``Ping``."""

    TYPE: ClassVar = "pong"

    number: int

    @classmethod
    def parse(cls, fields: Fields) -> Pong:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        return cls(fields.integer("number"))


Message: TypeAlias = Claim | Decline | Grant | Progress | Commit | Abort | Released | Ping | Pong

_TYPES: Final[dict[str, type[Message]]] = {
    kind.TYPE: kind
    for kind in (Claim, Decline, Grant, Progress, Commit, Abort, Released, Ping, Pong)
}


def to_json(message: Message) -> JSONObject:
    """A message as the object that goes into a frame."""
    content: JSONObject = {"type": message.TYPE}
    for field in dataclasses.fields(message):
        value: object = getattr(message, field.name)
        if isinstance(value, str):
            # A reason may quote a file name that is no UTF-8, which JSON cannot hold.
            value = value.encode("utf-8", "replace").decode()
        if value is not None:
            content[field.name] = value
    return content


def parse_message(content: JSONObject) -> Message:
    """Read one message of a hand-off, strictly; unknown fields are ignored.

    :raises MalformedMessage: its type is unknown, or a field is missing or wrong.
    """
    name = content.get("type")
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise MalformedMessage(
            f"message.type is {shown(name)}; one of {', '.join(_TYPES)} is needed",
            param="message.type",
        )
    return kind.parse(Fields(kind.TYPE.upper(), content))
