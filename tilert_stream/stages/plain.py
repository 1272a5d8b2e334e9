"""Text in, one JSON response at the end out.

A failed request yields nothing: nothing has been sent yet, so the failure becomes the HTTP status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..openai.encoding import dumps
from ..openai.objects import response

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..abc import Transform
    from ..events import Finished, TextDelta
    from ..openai.envelope import Envelope
    from ..scope import RequestScope

__all__ = ("EncodeJSON",)


class EncodeJSON:
    """Makes the encoder of one request that is not streamed."""

    stage_name = "plain"

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def __call__(self, scope: RequestScope) -> Transform[TextDelta, bytes]:
        """The encoder for ``scope``'s request."""
        return _JSONEncoder(self._envelope, scope)


class _JSONEncoder:
    __slots__ = ("_envelope", "_pieces", "_scope", "_tokens")

    def __init__(self, envelope: Envelope, scope: RequestScope) -> None:
        self._envelope = envelope
        self._scope = scope
        self._pieces: list[str] = []
        self._tokens = 0

    def feed(self, delta: TextDelta) -> Iterable[bytes]:
        self._pieces.append(delta.text)
        self._tokens += len(delta.ids)
        return ()

    def finish(self, outcome: Finished) -> Iterable[bytes]:
        if outcome.error is not None or outcome.reason == "cancelled":
            return ()
        text = "".join(self._pieces)
        whole = response(self._envelope, text, outcome, self._scope.usage, self._tokens)
        return (dumps(whole),)
