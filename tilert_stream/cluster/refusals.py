"""A node's refusal in, the error that our client gets out.

What is about the request passes through, with the node's own words; what is about the router
(a key, a path) is the operator's to know: it is logged, and the client reads 502.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, cast

import orjson

from ..errors import (
    BodyTooLarge,
    Busy,
    ContextLengthExceeded,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    UnsupportedParameter,
)
from ..http.client.errors import UpstreamError, UpstreamTimeout
from ..http.errors import RequestTimeout
from .errors import (
    HandOverLost,
    HandshakeRefused,
    LayoutMismatch,
    NodeFailed,
    NodeRefused,
    Unprocessable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..errors import TilertStreamError

__all__ = ("Words", "mismatch_of", "read_words", "refusal_of", "retry_after")

logger = logging.getLogger(__name__)

MESSAGE_MAX: Final = 2000
"""Characters of a node's message that are passed on."""

_PASSED: Final[Mapping[int, type[TilertStreamError]]] = {
    400: InvalidRequest,
    404: ModelNotFound,
    408: RequestTimeout,
    413: BodyTooLarge,
    422: Unprocessable,
    429: Busy,
    503: NotReady,
    504: UpstreamTimeout,
}
_BY_CODE: Final[Mapping[str, type[TilertStreamError]]] = {
    error.code: error for error in (ContextLengthExceeded, UnsupportedParameter)
}
_MISMATCHES: Final[Mapping[str, type[UpstreamError]]] = {
    HandshakeRefused.code: HandshakeRefused,
    "kv_handshake_mismatch": HandshakeRefused,
    "kv_layout_mismatch": LayoutMismatch,
    HandOverLost.code: HandOverLost,
}


class Words:
    """What a node says of its refusal: OpenAI's error object, or a flat ``{"error", "code"}``."""

    __slots__ = ("code", "message", "param")

    def __init__(self, message: str, param: str | None, code: str | None) -> None:
        self.message = message
        self.param = param
        self.code = code


def read_words(body: bytes) -> Words:
    """Read what can be read of ``body``; never fails."""
    try:
        decoded: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Words("", None, None)
    outer = cast("dict[str, object]", decoded) if isinstance(decoded, dict) else {}
    error = outer.get("error", outer)
    if isinstance(error, str):
        code = outer.get("code")
        return Words(error[:MESSAGE_MAX], None, code if isinstance(code, str) else None)
    inner = cast("dict[str, object]", error) if isinstance(error, dict) else {}
    message, param, code = (inner.get(name) for name in ("message", "param", "code"))
    return Words(
        message[:MESSAGE_MAX] if isinstance(message, str) else "",
        param if isinstance(param, str) else None,
        code if isinstance(code, str) else None,
    )


def retry_after(header: Callable[[bytes], str | None]) -> float | None:
    """Seconds, from ``retry-after-ms`` or ``Retry-After``; None where neither is a number.

    :param header: looks a header up by its name in lower case.
    """
    for name, unit in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        try:
            seconds = float(header(name) or "") * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def mismatch_of(words: Words, label: str) -> UpstreamError | None:
    """The error where two nodes do not come together, whatever its status; None otherwise."""
    kind = _MISMATCHES.get(words.code or "")
    return None if kind is None else kind(f"{label} gave the request up: {words.message}")


def refusal_of(
    status: int, body: bytes, *, label: str, after: float | None = None
) -> TilertStreamError:
    """The error for a node's answer with ``status``, which is not 200.

    :param after: its ``Retry-After``, in seconds.
    """
    words = read_words(body)
    mismatch = mismatch_of(words, label)
    if mismatch is not None:
        return mismatch
    about_request = status in _PASSED and (status != 404 or _names_model(words))
    if not about_request:
        # Whoever refuses a key may repeat it.
        reason = "look at its key" if status in (401, 403) else words.message or "without a reason"
        logger.warning("%s answered %d: %s", label, status, reason)
        if status < 500:
            return NodeRefused(f"{label} does not serve this router (status {status})")
        return NodeFailed(f"{label} failed (status {status})")
    kind = _BY_CODE.get(words.code or "", _PASSED[status]) if status == 400 else _PASSED[status]
    if status in (429, 503) and after is None:
        after = 1
    message = words.message or f"{label} refused the request (status {status})"
    return kind(message, param=words.param, retry_after=after)


def _names_model(words: Words) -> bool:
    """Whether a 404 is about the model; one about the path has no such words."""
    return (
        words.param == "model"
        or words.code == ModelNotFound.code
        or "model" in words.message.lower()
    )
