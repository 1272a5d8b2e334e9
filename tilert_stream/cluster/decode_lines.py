"""A decode node's stream: bytes in, cut anywhere; lines out, checked. No I/O.

The lines are TileRT's, with what ours adds::

    {"t": [ids], "lp": [[logprob, [[id, logprob], …]], …]}     "lp" only where it was asked for
    {"done": true, "finish_reason": "stop", "n": 5, "stop_token_id": 2, "stop_lp": […], …}
    {"error": "…"}

``n`` counts the ids of all ``t``, the first token among them. A stop token that ended the request
is in no ``t``: TileRT's router would show its text; ours learns it from ``stop_token_id``. Empty
lines, and objects with none of the three keys, are ignored: a node may add some.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import orjson

from ..events import TokenLogprob
from .json_fields import as_list, as_object, token_id

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("DecodeDone", "DecodeError", "DecodeLine", "DecodeLines", "DecodeTokens")

_NUMBER: Final = rb"(?:0|[1-9][0-9]{0,8})"
_PLAIN: Final = re.compile(rb'(?:\{"t": ?\[%b(?:, ?%b)*\]\}\n)+' % (_NUMBER, _NUMBER))
"""Lines that bring nothing but ids, as all but the last of most streams do."""
_COMMAS: Final = bytes.maketrans(b"\n", b",")

LINE_BYTES: Final = 1024 * 1024
"""The longest line: 100,000 ids, or 1,000 with 20 logprobs each."""


class DecodeTokens(NamedTuple):
    """Ids of one or more chains."""

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class DecodeDone:
    """The node has ended the request."""

    finish_reason: str
    """``stop``, ``length``, ``cancelled``, or what else the node says."""
    count: int | None = None
    """How many ids it has sent; None where it does not say."""
    stop_token_id: int | None = None
    stop_logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class DecodeError:
    """The node has given the request up."""

    message: str


DecodeLine: TypeAlias = "DecodeTokens | DecodeDone | DecodeError"


class DecodeLines:
    """Splits one stream into its lines. Nothing is read beyond ``done`` or ``error``."""

    __slots__ = ("_held", "ended")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self.ended = False
        """``done`` or ``error`` has come."""

    def feed_ids(self, data: bytes) -> tuple[tuple[int, ...], int]:
        """The ids of the lines with nothing but ids that ``data`` begins with, and where they end.

        0: it begins with something else, which is for ``feed``, as is what stands behind them.
        """
        if self._held or self.ended or len(data) > LINE_BYTES:
            return (), 0
        plain = _PLAIN.match(data)
        if plain is None:
            return (), 0
        end = plain.end()
        # A comma is left between two ids, and one behind the last.
        written = data[: end - 1].translate(_COMMAS, b'{"t: []}')
        return tuple(orjson.loads(b"[%b]" % written)), end

    def feed(self, data: bytes) -> list[DecodeLine]:
        """The lines that ``data`` completes; those that bring nothing but ids are given as one.

        :raises ValueError: a line is none of the above, or too long; it says why.
        """
        if self.ended:
            return []
        lines: list[DecodeLine] = []
        ids, end = self.feed_ids(data)
        if end:
            lines.append(DecodeTokens(ids))
            if end == len(data):
                return lines
            data = data[end:]
        *complete, rest = data.split(b"\n")
        if self._held and complete:
            complete[0] = b"".join((*self._held, complete[0]))
            self._held.clear()
        if rest:
            self._held.append(rest)
            if sum(map(len, self._held)) > LINE_BYTES:
                raise ValueError(f"a line is over {LINE_BYTES} bytes")
        for line in complete:
            read = _read(line)
            if read is not None:
                lines.append(read)
                if not isinstance(read, DecodeTokens):
                    self.ended = True
                    break
        return lines


def _read(line: bytes) -> DecodeLine | None:
    if len(line) > LINE_BYTES:
        raise ValueError(f"a line is over {LINE_BYTES} bytes")
    if not line.strip():
        return None
    try:
        fields = as_object(orjson.loads(line), "a line")
    except orjson.JSONDecodeError as error:
        raise ValueError(f"a line is no JSON: {line[:60]!r}") from error
    if "t" in fields:
        return _tokens(as_list(fields["t"], "t"), fields.get("lp"))
    if fields.get("done") is True:
        return _done(fields)
    if "error" in fields:
        words = fields["error"]
        return DecodeError(words if isinstance(words, str) else orjson.dumps(words).decode())
    return None


def _tokens(items: Sequence[object], logprobs: object) -> DecodeTokens:
    ids = tuple(token_id(item, "t[…]") for item in items)
    if logprobs is None:
        return DecodeTokens(ids)
    entries = as_list(logprobs, "lp")
    if len(entries) != len(ids):
        raise ValueError(f"lp has {len(entries)} items for {len(ids)} ids")
    return DecodeTokens(ids, tuple(map(_logprob, ids, entries)))


def _logprob(token: int, entry: object) -> TokenLogprob:
    logprob, *rest = as_list(entry, "lp[…]", least=1)
    top = as_list(rest[0], "lp[…][1]") if rest else []
    return TokenLogprob(token, _number(logprob), tuple(map(_alternative, top)))


def _alternative(pair: object) -> tuple[int, float]:
    token, logprob, *_ = as_list(pair, "lp[…][1][…]", least=2)
    return token_id(token, "lp[…][1][…][0]"), _number(logprob)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a logprob is no number")
    return float(value)


def _done(fields: dict[str, object]) -> DecodeDone:
    reason, count, stop = (fields.get(name) for name in ("finish_reason", "n", "stop_token_id"))
    stop_id = None if stop is None else token_id(stop, "stop_token_id")
    told = fields.get("stop_lp")
    return DecodeDone(
        reason if isinstance(reason, str) else "",
        count if isinstance(count, int) and not isinstance(count, bool) else None,
        stop_id,
        None if told is None or stop_id is None else _logprob(stop_id, told),
    )
