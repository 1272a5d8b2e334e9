"""A transform: synchronous, fused with its neighbours, costs a function call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilert_stream import Finished, TextDelta
from tilert_stream.scope import RequestScope


class Shout:
    """``TextDelta`` → ``TextDelta`` in capitals. Made anew for every request."""

    def __init__(self, _scope: RequestScope) -> None:
        """There is nothing to remember between two deltas."""

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        # ``ends`` are offsets into the text, so only mappings that keep its length are this easy.
        yield replace(
            item, text="".join(c.upper() if len(c.upper()) == 1 else c for c in item.text)
        )

    def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
        return ()
