"""What a request holds, and the only way back.

A reservation, a prefill run, a KV grant, a decode slot: whoever claims one for a request says so
with ``Lease.hold`` and gives a synchronous function that returns it. Leaving the request's scope,
for whatever reason, releases the lease.

Rules:

1. ``release`` is synchronous and idempotent. What must await goes to the janitor.
2. Things go back in the reverse order of their coming.
3. A thing that arrives after the release goes straight back.
4. One thing that cannot be returned does not keep the others.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from typing import TYPE_CHECKING

from .errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ("Hold", "Lease", "Ledger")

logger = logging.getLogger(__name__)


class Ledger:
    """How many things of each kind all requests together hold."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """Kinds that are held now; empty when nothing is."""
        return {kind: count for kind, count in self._counts.items() if count}

    def take(self, kind: str) -> None:
        """Note one more of ``kind``."""
        self._counts[kind] += 1

    def give(self, kind: str) -> None:
        """Note one less of ``kind``."""
        self._counts[kind] -= 1


class Hold:
    """One held thing."""

    __slots__ = ("_ledger", "_release", "kind")

    def __init__(self, kind: str, release: Callable[[str], None], ledger: Ledger) -> None:
        self.kind = kind
        self._release: Callable[[str], None] | None = release
        self._ledger = ledger
        ledger.take(kind)

    def release(self, reason: str) -> None:
        """Give it back before the rest. Idempotent."""
        if self._release is None:
            return
        release, self._release = self._release, None
        self._ledger.give(self.kind)
        try:
            release(reason)
        except Exception:
            # Rule 4. The fault is ours, never the client's: it must be seen, and stop nothing.
            logger.exception("could not give back %s (%s)", self.kind, reason)


class Lease:
    """Everything one request holds. Belongs to the event loop's thread."""

    __slots__ = ("_holds", "_ledger", "_released", "request_id")

    def __init__(self, request_id: str, ledger: Ledger) -> None:
        self.request_id = request_id
        self._ledger = ledger
        self._holds: list[Hold] = []
        self._released: str | None = None
        ledger.take("lease")

    @property
    def released(self) -> str | None:
        """Why it was released; None while it is held."""
        return self._released

    def hold(self, kind: str, release: Callable[[str], None]) -> Hold:
        """Take charge of a thing that ``release(reason)`` returns.

        :raises ~tilert_stream.errors.Cancelled: the lease has been released; the thing has been
            given straight back.
        """
        hold = Hold(kind, release, self._ledger)
        if self._released is not None:
            hold.release(self._released)
            raise Cancelled(
                f"request {self.request_id} ended ({self._released}) before its {kind} came"
            )
        self._holds.append(hold)
        return hold

    def release(self, reason: str) -> None:
        """Give everything back. Synchronous, idempotent."""
        if self._released is not None:
            return
        self._released = reason
        while self._holds:
            self._holds.pop().release(reason)
        self._ledger.give("lease")

    def __del__(self) -> None:
        if self._released is None:
            warnings.warn(
                f"lease of request {self.request_id} was never released",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
