"""Who is told of requests: one that looks on, and several of them as one.

An observer has no say: what it raises ends nothing and hides nothing. It is logged once, since what
fails at one request would fail at each.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ..errors import TilertStreamError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from ..events import Finished
    from ..scope import RequestScope
    from .record import RequestRecord

__all__ = ("Observer", "Observers")

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Called on the event loop's thread; it must not wait for anything."""

    def began(self, scope: RequestScope, /) -> None:
        """A request has begun to wait for a slot."""
        ...

    def ended(self, scope: RequestScope, outcome: Finished, /) -> None:
        """It has ended, however that came; its states and its record are complete."""
        ...

    def refused(self, record: RequestRecord, error: TilertStreamError, /) -> None:
        """A request was refused, or left by its client, before it could begin."""
        ...


class Observers:
    """Several observers; an observer itself, which never raises."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._failed = set[int]()

    def add(self, observer: Observer) -> None:
        """Tell ``observer`` too."""
        self._observers.append(observer)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._observers)

    def began(self, scope: RequestScope) -> None:
        """As the contract."""
        for observer in self._observers:
            try:
                observer.began(scope)
            except Exception:  # noqa: BLE001 - logged; an observer has no say
                self._log(observer)

    def ended(self, scope: RequestScope, outcome: Finished) -> None:
        """As the contract."""
        for observer in self._observers:
            try:
                observer.ended(scope, outcome)
            except Exception:  # noqa: BLE001 - logged; an observer has no say
                self._log(observer)

    def refused(self, record: RequestRecord, error: TilertStreamError) -> None:
        """As the contract."""
        for observer in self._observers:
            try:
                observer.refused(record, error)
            except Exception:  # noqa: BLE001 - logged; an observer has no say
                self._log(observer)

    def refusals(
        self, record: RequestRecord, name: Callable[[], str]
    ) -> AbstractContextManager[None]:
        """A block in which a request is read: what it raises is a refusal.

        :param name: the id that it is refused under.
        """
        return _Refusals(self, record, name)

    def _log(self, observer: Observer) -> None:
        """Say what has just been raised, once an observer."""
        if id(observer) not in self._failed:
            self._failed.add(id(observer))
            logger.exception(
                "%s failed; it is called on, and this is said once", type(observer).__name__
            )


class _Refusals:
    __slots__ = ("_name", "_observers", "_record")

    def __init__(
        self, observers: Observers, record: RequestRecord, name: Callable[[], str]
    ) -> None:
        self._observers = observers
        self._record = record
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception):
            return
        if not isinstance(error, TilertStreamError):
            # The client gets no more to know of it.
            error = TilertStreamError("internal error")
        self._record.refused_as = self._name()
        self._observers.refused(self._record, error)
