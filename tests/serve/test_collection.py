"""Garbage is looked for at a request's better moments, if enough is there; in the end by Python."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from tilert_stream.events import Finished
from tilert_stream.serve.collection import DUE, OVERDUE, ROUNDS, collect_between_requests
from tilert_stream.telemetry.observer import Observers
from tilert_stream.testing import make_scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilert_stream.scope import RequestScope


class Ring:
    """Only a collection finds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def observers() -> Iterator[Observers]:
    before = gc.get_threshold()
    observers = Observers()
    collect_between_requests(observers)
    yield observers
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture
def scope() -> Iterator[RequestScope]:
    with make_scope() as scope:
        yield scope


def dropped() -> weakref.ref[Ring]:
    return weakref.ref(Ring())


def ended(observers: Observers, scope: RequestScope) -> None:
    observers.ended(scope, Finished("length"))


def test_the_end_of_a_request_finds_what_it_left(observers: Observers, scope: RequestScope) -> None:
    assert gc.get_threshold()[0] == OVERDUE
    assert gc.get_freeze_count() > 0
    gc.collect()
    ring = dropped()
    kept: list[list[int]] = [[] for _ in range(DUE + 10)]
    assert ring() is not None, "the request still runs"
    ended(observers, scope)
    assert ring() is None
    assert len(kept) > DUE


def test_where_calls_have_left_it_is_looked_for_then(
    observers: Observers, scope: RequestScope
) -> None:
    scope.begun = object()
    gc.collect()
    ring = dropped()
    kept: list[list[int]] = [[] for _ in range(DUE + 10)]
    ended(observers, scope)
    assert ring() is not None, "the next request may be there"
    observers.began(scope)
    assert ring() is None
    assert len(kept) > DUE


def test_a_beginning_without_calls_is_not_held_up(
    observers: Observers, scope: RequestScope
) -> None:
    gc.collect()
    ring = dropped()
    kept: list[list[int]] = [[] for _ in range(DUE + 10)]
    observers.began(scope)
    assert ring() is not None
    assert len(kept) > DUE


def test_little_is_left_for_a_later_end(observers: Observers, scope: RequestScope) -> None:
    gc.collect()
    ring = dropped()
    ended(observers, scope)
    assert ring() is not None


def test_older_objects_are_pythons_own(observers: Observers, scope: RequestScope) -> None:
    gc.collect()
    for _ in range(ROUNDS + 1):
        gc.collect(0)
    ring = dropped()
    kept: list[list[int]] = [[] for _ in range(DUE + 10)]
    ended(observers, scope)
    assert ring() is not None, "it is time for more than the newest"
    kept += [[] for _ in range(OVERDUE)]
    assert ring() is None
    assert gc.get_count()[1] == 0, "the middle generation was looked through with it"
