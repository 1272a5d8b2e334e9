"""The owner thread: the only one that ever calls an engine.

In: commands from any thread. Out: nothing; commands and turns report through mailboxes and
completions. Between commands the thread takes turns: each open sequence or prompt gets one chain or
one chunk, then the next one's turn comes. A plain thread, never a pool: it cannot be used up by
others, and an engine's device context stays where it was made.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from tilert_stream.errors import EngineDied, EngineFault

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Job", "OwnerThread")

logger = logging.getLogger(__name__)


class Job(Protocol):
    """Work of one request on the engine. Every method is called on the owner thread."""

    def open(self) -> None:
        """Begin on the engine."""
        ...

    def turn(self) -> bool:
        """Do one chain or one chunk; False when it is over."""
        ...

    def close(self) -> None:
        """Free what it holds on the engine, and whatever waits for that. Called once."""
        ...

    def fail(self, error: EngineFault | EngineDied) -> None:
        """Tell whoever waits. Nothing else follows but ``close``."""
        ...


class OwnerThread:
    """Runs jobs in turns, on a thread of its own.

    :param name: the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._commands: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._open: set[Job] = set()
        self._turns: deque[Job] = deque()
        self._death: EngineDied | None = None
        self._thread: threading.Thread | None = None

    def start(self, on_death: Callable[[EngineDied], object]) -> None:
        """Start the thread.

        :param on_death: called once, on the thread, if an engine call raises anything but
            ``EngineFault``. From then on every job fails with ``EngineDied``.
        """
        self._death = None
        self._on_death = on_death
        # A daemon: a device call that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the present turn and fail what is open; waits for it."""
        if self._thread is not None:
            self._commands.put(None)
            self._thread.join()
            self._thread = None

    def open(self, job: Job) -> None:
        """Open ``job`` on the engine, after all commands before this one. From any thread."""
        self._commands.put(lambda: self._open_job(job))

    def begin(self, job: Job) -> None:
        """Let an open ``job`` take turns. From any thread."""
        self._commands.put(lambda: self._begin(job))

    def close(self, job: Job) -> None:
        """Close ``job`` before its next turn; nothing happens if it is. From any thread."""
        self._commands.put(lambda: self._close_job(job))

    def call(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the thread, between turns. From any thread."""
        self._commands.put(function)

    def _run(self) -> None:
        while True:
            if self._turns and self._commands.empty():
                self._take_turn(self._turns.popleft())
                continue
            command = self._commands.get()
            if command is None:
                break
            command()
        self._fail_all(EngineDied("the engine was stopped"))
        self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        """Carry out commands that came too late: their jobs must hear that nothing runs."""
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            if command is not None:
                command()

    def _open_job(self, job: Job) -> None:
        self._open.add(job)
        if self._death is not None:
            job.fail(self._death)
            self._close_job(job)
        else:
            self._guarded(job, job.open)

    def _begin(self, job: Job) -> None:
        if job in self._open:
            self._turns.append(job)

    def _take_turn(self, job: Job) -> None:
        more: list[bool] = []
        self._guarded(job, lambda: more.append(job.turn()))
        if job not in self._open:
            return
        if more[0]:
            self._turns.append(job)
        else:
            self._close_job(job)

    def _guarded(self, job: Job, action: Callable[[], None]) -> None:
        """Run an engine call of ``job``; a fault ends the job, anything else the engine."""
        try:
            action()
        except EngineFault as error:
            job.fail(error)
            self._close_job(job)
        except Exception as error:
            logger.exception("the engine died")
            self._die(EngineDied("the engine died; the server is shutting down"), error)

    def _die(self, death: EngineDied, cause: Exception) -> None:
        death.__cause__ = cause
        # Readiness turns false before the first client hears of it.
        self._on_death(death)
        self._fail_all(death)

    def _fail_all(self, death: EngineDied) -> None:
        self._death = death
        for job in list(self._open):
            job.fail(death)
            self._close_job(job)

    def _close_job(self, job: Job) -> None:
        if job not in self._open:
            return
        self._open.discard(job)
        if job in self._turns:
            self._turns.remove(job)
        try:
            job.close()
        except Exception as error:
            if self._death is None:
                logger.exception("the engine died while closing a job")
                self._die(EngineDied("the engine died; the server is shutting down"), error)
