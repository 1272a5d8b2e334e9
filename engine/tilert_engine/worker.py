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

from tilert_stream.completion import Completion
from tilert_stream.errors import EngineDied, EngineFault

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("EngineWorker", "Job", "OwnerThread")

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
        self._lock = threading.Lock()
        self._stopped = False
        self._open: set[Job] = set()
        self._turns: deque[Job] = deque()
        self._death: EngineDied | None = None
        self._thread: threading.Thread | None = None

    def start(self, on_death: Callable[[EngineDied], object]) -> None:
        """Start the thread.

        :param on_death: called once, on the thread, if an engine call raises anything but
            ``EngineFault``. From then on every job fails with ``EngineDied``.
        :raises RuntimeError: it runs already; an engine has one owner.
        """
        if self._thread is not None:
            raise RuntimeError(f"the thread {self._name} already runs; stop it first")
        self._death = None
        self._stopped = False
        self._on_death = on_death
        # A daemon: a device call that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the present turn and fail what is open; waits for it.

        Until the next start every job that comes fails with ``EngineDied``.
        """
        if self._thread is not None:
            self._commands.put(None)
            self._thread.join()
            self._thread = None

    def open(self, job: Job) -> None:
        """Open ``job`` on the engine, after all commands before this one. From any thread."""
        self._give(lambda: self._open_job(job))

    def begin(self, job: Job) -> None:
        """Let an open ``job`` take turns. From any thread."""
        self._give(lambda: self._begin(job))

    def close(self, job: Job) -> None:
        """Close ``job`` before its next turn; nothing happens if it is. From any thread."""
        self._give(lambda: self._close_job(job))

    def call(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the thread, between turns. From any thread."""
        self._give(function)

    def _give(self, command: Callable[[], object]) -> None:
        with self._lock:
            if not self._stopped:
                self._commands.put(command)
                return
        # There is no thread any more and no engine call to come: the job only hears so.
        command()

    def _run(self) -> None:
        while True:
            if self._turns and self._commands.empty():
                self._take_turn(self._turns.popleft())
                continue
            command = self._commands.get()
            if command is None:
                break
            self._guarded(command)
        self._fail_all(EngineDied("the engine was stopped"))
        with self._lock:
            self._stopped = True
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
            self._guarded(job.open, job)

    def _begin(self, job: Job) -> None:
        if job in self._open and job not in self._turns:
            self._turns.append(job)

    def _take_turn(self, job: Job) -> None:
        more: list[bool] = []
        self._guarded(lambda: more.append(job.turn()), job)
        if job not in self._open:
            return
        if more[0]:
            self._turns.append(job)
        else:
            self._close_job(job)

    def _guarded(self, action: Callable[[], object], job: Job | None = None) -> None:
        """Run ``action``; a fault ends the ``job`` it is for, anything else the engine."""
        try:
            action()
        # Whatever it is, SystemExit and a Rust panic too: nobody above this thread would tell.
        except BaseException as error:  # noqa: BLE001 - see above
            if job is not None and isinstance(error, EngineFault):
                job.fail(error)
                self._close_job(job)
            else:
                self._die("the engine died", error)

    def _die(self, what: str, cause: BaseException) -> None:
        logger.error(what, exc_info=cause)
        if self._death is not None:
            return
        death = EngineDied("the engine died; the server is shutting down")
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
        except BaseException as error:  # noqa: BLE001 - as in _guarded
            self._die("the engine died while closing a job", error)


class EngineWorker:
    """What the workers of both kinds of engine have in common: the life of their owner thread.

    :param name: the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._thread = OwnerThread(name)

    def start(self, on_death: Callable[[EngineDied], object]) -> None:
        """Start the owner thread; it calls ``on_death`` if the engine dies."""
        self._thread.start(on_death)

    def stop(self) -> None:
        """End the owner thread; waits for its present turn."""
        self._thread.stop()

    def close(self, job: Job) -> None:
        """Give ``job`` up before its next chain or chunk. Idempotent."""
        self._thread.close(job)

    async def settled(self) -> None:
        """Wait until every command given so far has been carried out."""
        done = Completion[None]()
        self._thread.call(lambda: done.set(None))
        await done.wait()
