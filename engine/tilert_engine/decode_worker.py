"""Decode jobs: a sequence is opened (its KV imported), begun, and harvested a chain at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from tilert_stream.completion import Completion
from tilert_stream.events import Finished

from .worker import EngineWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_stream.abc import DecodeEngine
    from tilert_stream.errors import TilertStreamError
    from tilert_stream.events import Limits, Sampling, TokenBatch
    from tilert_stream.mailbox import Mailbox

__all__ = ("DecodeJob", "DecodeWorker")

SequenceT = TypeVar("SequenceT")


class DecodeJob(Generic[SequenceT]):
    """One request's sequence on the decode engine."""

    def __init__(
        self,
        engine: DecodeEngine[SequenceT],
        slot: int,
        kv: object,
        first_token: int,
        limits: Limits,
        sampling: Sampling,
        on_closed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._slot = slot
        self._kv = kv
        self._start = (first_token, limits, sampling)
        self._on_closed = on_closed
        self._sequence: SequenceT | None = None
        self._mailbox: Mailbox[TokenBatch] | None = None
        self._error: TilertStreamError | None = None
        self.opened = Completion[None]()
        """Set when the KV cache is in the slot."""

    def open(self) -> None:
        """Import the KV cache."""
        self._sequence = self._engine.open(self._slot, self._kv, *self._start)
        # The slot has its own copy now; the hand-over's memory must not live as long as the answer.
        self._kv = None
        self.opened.set(None)

    def deliver_to(self, mailbox: Mailbox[TokenBatch]) -> None:
        """Send harvests to ``mailbox``, or at once the error that came before."""
        self._mailbox = mailbox
        if self._error is not None:
            mailbox.put(Finished.failed(self._error))

    def turn(self) -> bool:
        """Run one chain and hand over its harvest: one wake, the end in it if there is one."""
        if self._sequence is None or self._mailbox is None:
            raise RuntimeError("a sequence takes turns once it is open and has a mailbox")
        harvest = self._engine.advance(self._sequence)
        if harvest.finished is not None:
            self._mailbox.put(harvest.batch, harvest.finished)
            return False
        # A chain without a token is no sign of life: the time between tokens goes on.
        return self._mailbox.put(*(harvest.batch,) if harvest.batch.ids else ())

    def close(self) -> None:
        """Free the slot."""
        sequence, self._sequence = self._sequence, None
        try:
            if sequence is not None:
                self._engine.close(sequence)
        finally:
            self._on_closed()

    def fail(self, error: TilertStreamError) -> None:
        """Tell the request's task, wherever it waits."""
        self._error = error
        self.opened.fail(error)
        if self._mailbox is not None:
            self._mailbox.put(Finished.failed(error))


class DecodeWorker(EngineWorker, Generic[SequenceT]):
    """A decode engine and its owner thread."""

    def __init__(self, engine: DecodeEngine[SequenceT]) -> None:
        super().__init__("tilert-decode")
        self.engine = engine

    def open(
        self,
        slot: int,
        kv: object,
        first_token: int,
        limits: Limits,
        sampling: Sampling,
        *,
        on_closed: Callable[[], None],
    ) -> DecodeJob[SequenceT]:
        """Have the KV cache imported; the job's ``opened`` tells when it is.

        :param on_closed: called once, on the owner thread, when the engine is done with the slot.
        """
        job = DecodeJob(self.engine, slot, kv, first_token, limits, sampling, on_closed)
        self._thread.open(job)
        return job

    def begin(self, job: DecodeJob[SequenceT], mailbox: Mailbox[TokenBatch]) -> None:
        """Let tokens flow into ``mailbox``."""
        self._thread.call(lambda: job.deliver_to(mailbox))
        self._thread.begin(job)
