"""The messages of TileRT's own dialect, ``tilert-pd``, byte for byte.

As ``tilert/pd_vllm`` speaks it up to pull request 61. One connection a request and sending rank:

1. decode → prefill: hello, with the addresses to write to;
2. prefill → decode: request;
3. prefill writes, then: done. A refusal may come between, which TileRT's own prefill never reads.

The roles are in ``tilert_pd_session.py`` (with ``tilert_pd_decode.py`` behind it) and
``tilert_pd_prefill.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tilert_stream.errors import Busy

from .errors import HandOffFailed, HandshakeRefused
from .fields import Fields, shown
from .frames import frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .frames import JSONObject

__all__ = (
    "MAGIC",
    "SENDER_RANK",
    "TilertDone",
    "TilertHello",
    "TilertRequest",
    "encode",
    "explain_version",
    "normalise_rid",
    "refusal_of",
)

MAGIC: Final = "tilert-pd"
SENDER_RANK: Final = 0
"""The latent is the same on all tensor-parallel ranks, so that one sends."""
_ADDRESS: Final = 2**64 - 1
_HEX: Final = frozenset("0123456789abcdef")
_VERSIONS: Final = {
    10: "GLM-5 with its draft layer",
    1010: "GLM-5 without its draft layer",
    11: "DeepSeek-V3.2",
}
_BF16: Final = 40
"""A layout version of a bf16 cache is the fp8 one plus this."""


def encode(content: JSONObject) -> bytes:
    """One message as TileRT's own ``json.dumps`` writes it, in its frame."""
    return frame(json.dumps(content).encode())


def normalise_rid(request_id: str) -> str:
    """The id that both of TileRT's ends derive from vLLM's ids for one request.

    Without a leading ``chatcmpl-`` or ``cmpl-``, then without one trailing group of up to 8 hex
    digits, then without one of up to 3 digits. It is lossy: only an id without a dash is sure to
    come back as it was.
    """
    rid = request_id
    for prefix in ("chatcmpl-", "cmpl-"):
        if rid.startswith(prefix):
            rid = rid.removeprefix(prefix)
            break
    rest, dash, group = rid.rpartition("-")
    if dash and len(group) <= 8 and _HEX.issuperset(group):
        rid = rest
    rest, dash, group = rid.rpartition("-")
    if dash and len(group) <= 3 and group.isdigit():
        rid = rest
    return rid


def explain_version(version: int) -> str:
    """A layout version and what it stands for."""
    for offset, cache in ((0, "fp8"), (_BF16, "bf16")):
        if version - offset in _VERSIONS:
            return f"{version} ({_VERSIONS[version - offset]}, {cache} cache)"
    return str(version)


@dataclass(frozen=True, slots=True)
class TilertHello:
    """What the decode node says first."""

    layout_version: int
    transport: str
    """``mooncake`` or ``nixl``."""
    max_seq_len: int
    """Rows that each plane has a layer: the sender's strides follow from it."""
    busy: bool
    """Another request's transfer is incomplete."""
    card: Mapping[str, str | int]
    """Mooncake: ``session_id``. NIXL: ``nixl_meta`` (base64) and ``nixl_dev``."""
    bases: Mapping[str, int]
    """Absolute addresses of the planes' first layers: ``kv_base``, ``pe_base``, ``ki_base``."""

    def to_json(self) -> JSONObject:
        """The message, its fields in TileRT's order."""
        return {
            "magic": MAGIC,
            "layout_version": self.layout_version,
            "transport": self.transport,
            "max_seq_len": self.max_seq_len,
            "busy": self.busy,
            **self.card,
            **self.bases,
        }

    @classmethod
    def parse(cls, content: JSONObject) -> TilertHello:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        :raises HandshakeRefused: it is another protocol.
        """
        fields = Fields("hello", content)
        magic = fields.text("magic")
        if magic != MAGIC:
            raise HandshakeRefused(f"the decode node's magic word is {magic!r}, not {MAGIC!r}")
        if fields.has("protocol_version"):
            # The protocol as described above has no such field: a later one waits for an answer.
            version = fields.integer("protocol_version")
            raise HandshakeRefused(
                f"the decode node speaks tilert-pd of protocol_version {version}; this node the one"
                " without a version (TileRT up to pull request 61)"
            )
        transport = fields.text("transport")
        card: dict[str, str | int]
        if transport == "nixl":
            fields.blob("nixl_meta")
            device = fields.integer("nixl_dev") if fields.has("nixl_dev") else 0
            card = {"nixl_meta": str(content["nixl_meta"]), "nixl_dev": device}
        else:
            card = {"session_id": fields.text("session_id")}
        return cls(
            layout_version=fields.integer("layout_version"),
            transport=transport,
            max_seq_len=fields.integer("max_seq_len", least=1),
            busy=fields.flag("busy"),
            card=card,
            bases={
                name: fields.integer(name, most=_ADDRESS)
                for name in content
                if name.endswith("_base")
            },
        )


@dataclass(frozen=True, slots=True)
class TilertRequest:
    """What a prefill rank says before it writes."""

    rid: str
    rank: int
    seq_len: int
    """Tokens of the prompt."""
    last_prompt_token: int
    sampling: Mapping[str, object] | None = field(default=None, hash=False)

    def to_json(self) -> JSONObject:
        """The message, its fields in TileRT's order."""
        return {
            "rid": self.rid,
            "rank": self.rank,
            "seq_len": self.seq_len,
            "last_prompt_token": self.last_prompt_token,
            "sampling": None if self.sampling is None else dict(self.sampling),
        }

    @classmethod
    def parse(cls, content: JSONObject) -> TilertRequest:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        fields = Fields("request", content)
        return cls(
            rid=fields.text("rid"),
            rank=fields.integer("rank"),
            seq_len=fields.integer("seq_len", least=1),
            last_prompt_token=fields.integer("last_prompt_token"),
            sampling=fields.mapping("sampling") if fields.has("sampling") else None,
        )


@dataclass(frozen=True, slots=True)
class TilertDone:
    """What a prefill rank says when it has written everything."""

    rid: str
    rank: int

    def to_json(self) -> JSONObject:
        """The message, its fields in TileRT's order."""
        return {"done": True, "rid": self.rid, "rank": self.rank}

    @classmethod
    def parse(cls, content: JSONObject) -> TilertDone:
        """Read one.

        :raises MalformedMessage: a field is missing or wrong.
        """
        fields = Fields("done", content)
        if content.get("done") is not True:
            fields.refuse("done", "true")
        return cls(fields.text("rid"), fields.integer("rank"))


def refusal_of(content: JSONObject) -> Busy | HandOffFailed:
    """The error that a decode node's refusal stands for; ``busy`` may be tried again."""
    reason = Fields("refusal", content).prose("error")
    if reason == "busy":
        return Busy(f"the decode node is busy with {shown(content.get('busy_rid'))}", retry_after=1)
    return HandOffFailed(f"the decode node refuses the request: {reason}")
