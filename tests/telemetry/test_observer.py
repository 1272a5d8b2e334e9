from __future__ import annotations

import logging

import pytest

from tilert_stream.errors import BodyTooLarge, TilertStreamError
from tilert_stream.events import Finished
from tilert_stream.scope import RequestScope
from tilert_stream.telemetry.observer import Observers
from tilert_stream.telemetry.record import RequestRecord
from tilert_stream.testing import make_scope


class Told:
    """Keeps what it is told, and raises if it is to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, object]] = []
        self.error = error

    def began(self, scope: RequestScope) -> None:
        self._note("began", scope.request.id)

    def ended(self, scope: RequestScope, outcome: Finished) -> None:
        self._note("ended", outcome)

    def refused(self, record: RequestRecord, error: TilertStreamError) -> None:
        self._note("refused", error)

    def _note(self, name: str, what: object) -> None:
        self.calls.append((name, what))
        if self.error is not None:
            raise self.error


def test_nobody_who_looks_on_is_false() -> None:
    observers = Observers()
    assert not observers
    observers.add(Told())
    assert observers


def test_all_are_told_in_order() -> None:
    first, second = Told(), Told()
    observers = Observers()
    observers.add(first)
    observers.add(second)
    outcome = Finished("stop")
    with make_scope() as scope:
        observers.began(scope)
        observers.ended(scope, outcome)
    assert first.calls == second.calls == [("began", "feed"), ("ended", outcome)]


def test_one_that_fails_hides_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, sound = Told(OSError("disk full")), Told()
    observers = Observers()
    observers.add(broken)
    observers.add(sound)
    with make_scope() as scope:
        observers.began(scope)
        observers.ended(scope, Finished("stop"))
    assert [name for name, _ in broken.calls] == ["began", "ended"]
    assert broken.calls == sound.calls
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "Told failed; it is called on, and this is said once"
    assert record.exc_info is not None
    assert record.exc_info[1] is broken.error


def test_each_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    observers = Observers()
    observers.add(Told(OSError("one")))
    observers.add(Told(OSError("two")))
    with make_scope() as scope:
        observers.began(scope)
    assert len(caplog.records) == 2


def test_what_is_raised_while_a_request_is_read_is_a_refusal() -> None:
    told = Told()
    observers = Observers()
    observers.add(told)
    error = BodyTooLarge("too much")
    record = RequestRecord()
    with pytest.raises(BodyTooLarge), observers.refusals(record, lambda: "cafe"):
        raise error
    assert told.calls == [("refused", error)]
    assert record.refused_as == "cafe"


def test_a_fault_is_told_without_its_words() -> None:
    told = Told()
    observers = Observers()
    observers.add(told)
    with pytest.raises(ZeroDivisionError), observers.refusals(RequestRecord(), str):
        raise ZeroDivisionError("/etc/secret")
    ((name, error),) = told.calls
    assert name == "refused"
    assert isinstance(error, TilertStreamError)
    assert (error.status, error.message) == (500, "internal error")
