"""A KV layout as two nodes compare theirs, at a reservation and in the handshake: fields → faults.

What the fields are is the layout's own business: whatever both sides give must be equal, and a
field that one of them lacks is a difference, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from .fields import Fields
    from .frames import JSONObject

__all__ = ("Description", "Difference", "describe", "differences")

Description: TypeAlias = Mapping[str, str | int | bool]
"""As ``KVLayout.describe`` gives it. How many tokens fit is no part of it."""


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


_SAME_MODEL: Final = "serve the same model on both nodes (--model)"
_FIXES: Final[Mapping[str, str]] = {
    "kind": _SAME_MODEL,
    "version": f"{_SAME_MODEL}, with the same release of tilert_stream",
    "model": (
        "serve the same model under the same name on both nodes (--model; on vLLM also the option"
        " 'model' of kv_connector_extra_config)"
    ),
    "dtype": "give both nodes the same --dtype (--kv-cache-dtype for MLA models, and on vLLM)",
    "block_size": "give both nodes the same --block-size",
    "layers": _SAME_MODEL,
    "draft_layers": (
        "give both nodes the draft layer or neither: --with-mtp on the decode node,"
        ' --speculative-config {"method":"mtp","num_speculative_tokens":1} on prefill'
    ),
    "kv_heads": _SAME_MODEL,
    "head_dim": _SAME_MODEL,
    "senders": (
        "give the decode node as --senders the number of prefill's ranks that send:"
        " --tensor-parallel-size, or the model's key/value heads if they are fewer"
    ),
}


def differences(ours: Description, theirs: Description) -> tuple[Difference, ...]:
    """Why a cache of the one cannot be taken for one of the other; empty if it can."""
    return tuple(
        Difference(field, _shown(ours, field), _shown(theirs, field), _fix(field))
        for field in {**ours, **theirs}
        # True equals 1, and is another value all the same.
        if ours.get(field) != theirs.get(field)
        or type(ours.get(field)) is not type(theirs.get(field))
    )


def describe(found: tuple[Difference, ...]) -> str:
    """All of them as one sentence."""
    return "; ".join(map(str, found))


def _shown(fields: Description, field: str) -> str:
    return str(fields.get(field, "not given"))


def _fix(field: str) -> str:
    return _FIXES.get(field, _SAME_MODEL)
