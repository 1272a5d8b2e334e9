"""Several processes on one port: a worker's function in, its exit code out.

::

    supervisor ──spawn──► worker ─► ready ─► serves (SO_REUSEPORT: the kernel spreads connections)
        │                   └── dies: another takes its place
        └── SIGTERM, SIGINT ──► every worker drains; the second time, cuts

Workers share nothing: this is for roles that keep no state of their own. A worker that dies before
it was ready would die again: then all are drained and its exit code is the supervisor's.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Final, TypeAlias

from ..errors import ConfigError
from .errors import BindFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from .settings import ServerSettings

    Ready: TypeAlias = Callable[[], None]
    Work: TypeAlias = Callable[[ServerSettings, Ready], int]

__all__ = ("Supervisor",)

logger = logging.getLogger("tilert_stream.http")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    process: SpawnProcess
    messages: Connection[None, None]
    """One message: it is ready."""


class Supervisor:
    """Keeps ``count`` workers running until a signal.

    :param work: an importable function, run in each worker's main thread. It serves with the
        settings that it gets until SIGTERM, calls its second argument once it listens, and returns
        the worker's exit code.
    :param on_ready: called with the port and the workers' process ids whenever all are ready.
    :raises ~tilert_stream.errors.ConfigError: a Unix socket cannot be shared.
    """

    def __init__(
        self,
        work: Work,
        settings: ServerSettings,
        count: int,
        *,
        on_ready: Callable[[int, list[int]], None] | None = None,
    ) -> None:
        if settings.uds is not None:
            raise ConfigError(
                f"uds is {settings.uds} and workers is {count}; processes can share a port, not a"
                " Unix socket: give host and port, or one worker.",
                param="uds",
            )
        self._work = work
        self._settings = replace(settings, reuse_port=True)
        self._count = count
        self._on_ready = on_ready
        self._starting: set[_Worker] = set()
        self._serving: set[_Worker] = set()
        self._draining = False
        self._exit_code = 0

    def serve(self) -> int:
        """Run in the main thread until every worker has ended; the exit code.

        :raises BindFailed: there is no such address.
        """
        with ExitStack() as stack:
            if self._settings.port == 0:
                held = stack.enter_context(_hold_port(self._settings))
                self._settings = replace(self._settings, port=held.getsockname()[1])
            signals = stack.enter_context(_signals())
            for _ in range(self._count):
                self._start()
            while workers := self._starting | self._serving:
                self._turn(signals, workers)
        return self._exit_code

    def _turn(self, signals: int, workers: set[_Worker]) -> None:
        ready = wait([signals, *(w.process.sentinel for w in workers), *_messages(self._starting)])
        if signals in ready:
            for number in os.read(signals, 64):
                self._heed(signal.Signals(number))
        for worker in workers:
            if worker in self._starting and worker.messages in ready:
                self._hear(worker)
            if worker.process.sentinel in ready:
                self._bury(worker)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(self._work, self._settings, sender))
        process.start()
        sender.close()
        self._starting.add(_Worker(process, receiver))

    def _heed(self, number: signal.Signals) -> None:
        logger.info("%s: passed on to the workers.", number.name)
        self._drain()

    def _drain(self) -> None:
        self._draining = True
        for worker in self._starting | self._serving:
            worker.process.terminate()

    def _hear(self, worker: _Worker) -> None:
        try:
            worker.messages.recv()
        except EOFError:
            return
        self._starting.remove(worker)
        self._serving.add(worker)
        if self._on_ready is not None and len(self._serving) == self._count:
            pids = [each.process.pid for each in self._serving]
            self._on_ready(self._settings.port, [pid for pid in pids if pid is not None])

    def _bury(self, worker: _Worker) -> None:
        worker.process.join()
        worker.messages.close()
        pid, code = worker.process.pid, worker.process.exitcode or 0
        worker.process.close()
        was_ready = worker in self._serving
        self._starting.discard(worker)
        self._serving.discard(worker)
        if self._draining:
            self._fail(code)
        elif was_ready:
            logger.error("Worker %s ended with %s; another takes its place.", pid, code)
            self._start()
        else:
            logger.error("Worker %s ended with %s before it was ready.", pid, code)
            self._fail(code or 1)
            self._drain()

    def _fail(self, code: int) -> None:
        # A worker that is still starting knows no drain: it dies of the signal itself.
        if code != -signal.SIGTERM and not self._exit_code:
            self._exit_code = code if code >= 0 else 128 - code


def _messages(workers: set[_Worker]) -> list[Connection[None, None]]:
    return [worker.messages for worker in workers if not worker.messages.closed]


def _run(work: Work, settings: ServerSettings, ready: Connection[None, None]) -> None:
    """A worker's main function."""
    # A terminal's Ctrl-C goes to the whole group: the workers would get it twice, and cut.
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_supervisor, daemon=True).start()

    def tell() -> None:
        ready.send(None)
        ready.close()

    sys.exit(work(settings, tell))


def _end_with_supervisor() -> None:
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        supervisor.join()
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _signals() -> Generator[int, None, None]:
    """A file descriptor from which the numbers of arriving signals can be read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = {
        number: signal.signal(number, lambda got, _frame: os.write(writer, bytes([got])) and None)
        for number in SIGNALS
    }
    try:
        yield reader
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _hold_port(settings: ServerSettings) -> socket.socket:
    """Take a free port, so that it stays the workers' while one of them is replaced."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise BindFailed(
            f"Cannot listen on {settings.host}: {error.strerror or error}.", param="host"
        ) from error
    return sock
