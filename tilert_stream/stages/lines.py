"""Token ids in, a decode node's lines out: what a router reads from ``POST /pd/decode``.

The wire is TileRT's, JSON lines, with what ours adds::

    {"t": [ids]}
    {"done": true, "n": 5, "seq_len": 17, "finish_reason": "stop", "timing_ms": {…}, …}
    {"error": "…"}

A stop token is in no ``t``, and ``n`` does not count it: a TileRT router would show its text. Ours
learns it from ``stop_token_id``. The last ids and the line behind them are one item, hence one
write. Log-probabilities ride as ``lp``, one entry an id, and as ``stop_lp`` that of the stop token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..lifecycle import CLOCK, State
from ..openai.encoding import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..abc import Transform
    from ..events import Finished, TokenBatch, TokenLogprob
    from ..scope import RequestScope

__all__ = ("NDJSON", "EncodeLines", "EncodeTokens")

_TOLD: Final = ("finish_reason", "mtp_accept_mean", "mtp_verify_calls")
"""TileRT's own counts; further ones of ours follow them."""

NDJSON: Final = ((b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache"))


class EncodeLines:
    """Makes the encoder of one streamed request.

    :param times: when its KV cache ``landed``, was ``converted`` and ``imported``, seconds on
        ``CLOCK``.
    """

    stage_name = "lines"

    def __init__(self, times: Mapping[str, float]) -> None:
        self._times = times

    def __call__(self, scope: RequestScope) -> Transform[TokenBatch, bytes]:
        """The encoder for ``scope``'s request."""
        return _Lines(scope, self._times)


class EncodeTokens:
    """Makes the encoder of one request whose answer is a single object.

    :param times: when its KV cache ``landed``, was ``converted`` and ``imported``, seconds on
        ``CLOCK``.
    """

    stage_name = "tokens"

    def __init__(self, times: Mapping[str, float]) -> None:
        self._times = times

    def __call__(self, scope: RequestScope) -> Transform[TokenBatch, bytes]:
        """The encoder for ``scope``'s request."""
        return _Tokens(scope, self._times)


class _Lines:
    __slots__ = ("_count", "_scope", "_stop_logprob", "_stop_token", "_times")

    def __init__(self, scope: RequestScope, times: Mapping[str, float]) -> None:
        self._scope = scope
        self._times = times
        self._count = 0
        self._stop_token: int | None = None
        self._stop_logprob: TokenLogprob | None = None

    def feed(self, batch: TokenBatch) -> Iterable[bytes]:
        ids = batch.ids
        if batch.ends_with_stop:
            *_, self._stop_token = ids
            ids = ids[:-1]
            if batch.logprobs is not None:
                *_, self._stop_logprob = batch.logprobs
        self._count += len(ids)
        if not ids:
            return ()
        line: dict[str, object] = {"t": ids}
        if batch.logprobs is not None:
            line["lp"] = [_pair(entry) for entry in batch.logprobs[: len(ids)]]
        return (dumps(line) + b"\n",)

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        if outcome.error is not None and outcome.reason != "cancelled":
            return (dumps({"error": outcome.error.message, "code": outcome.error.code}) + b"\n",)
        done: dict[str, object] = {
            "done": True,
            "n": self._count,
            "seq_len": self._scope.usage.prompt_tokens,
            "finish_reason": outcome.reason,
            "timing_ms": _timing(self._scope, self._times, outcome),
        }
        if self._stop_token is not None:
            done["stop_token_id"] = self._stop_token
        if self._stop_logprob is not None:
            done["stop_lp"] = _pair(self._stop_logprob)
        return (dumps(done) + b"\n",)


class _Tokens:
    __slots__ = ("_ids", "_scope", "_stop_token", "_times")

    def __init__(self, scope: RequestScope, times: Mapping[str, float]) -> None:
        self._scope = scope
        self._times = times
        self._ids: list[int] = []
        self._stop_token: int | None = None

    def feed(self, batch: TokenBatch) -> Iterable[bytes]:
        self._ids += batch.ids
        if batch.ends_with_stop:
            self._stop_token = self._ids.pop()
        return ()

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        if outcome.error is not None:
            return ()
        answer: dict[str, object] = {
            "rid": self._scope.request.id,
            "token_ids": self._ids,
            "seq_len": self._scope.usage.prompt_tokens,
            "finish_reason": outcome.reason,
            "timing_ms": _timing(self._scope, self._times, outcome),
        }
        if self._stop_token is not None:
            answer["stop_token_id"] = self._stop_token
        return (dumps(answer),)


def _pair(entry: TokenLogprob) -> tuple[float, tuple[tuple[int, float], ...]]:
    return entry.logprob, entry.top


def _timing(
    scope: RequestScope, times: Mapping[str, float], outcome: Finished
) -> dict[str, object]:
    """Milliseconds: waiting for the KV cache, reading it, putting it into its slot, decoding.

    Names and order are TileRT's, and so is what stands beside them: how it ended, which requests
    that were never decoded have too, and what the engine has counted.
    """
    begun, now = scope.lifecycle.entered[State.QUEUED], CLOCK()
    landed = times.get("landed", now)
    imported = times.get("imported", now)
    converted = times.get("converted", imported)
    spans = {
        "wire_wait": landed - begun,
        "convert": converted - landed,
        "inject": imported - converted,
        "decode": now - imported,
    }
    milliseconds = {name: round(seconds * 1000, 3) for name, seconds in spans.items()}
    counted = {**(outcome.account or {}), "finish_reason": outcome.reason}
    told: dict[str, object] = {name: counted.pop(name) for name in _TOLD if name in counted}
    return {**milliseconds, **told, **counted}
