"""Several processes on one port, watched over by one more."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess

import pytest

from tests.http.workers import fail, supervise, work
from tilert_stream.errors import ConfigError
from tilert_stream.http import ServerSettings
from tilert_stream.http.supervisor import Supervisor

SETTINGS = ServerSettings(port=0, lifespan="off", access_log=False)
LIMIT = 60
"""Seconds; nothing waits for it unless something hangs."""


@contextmanager
def supervisor(
    target: Callable[[ServerSettings, Callable[[], None]], int] = work,
) -> Generator[tuple[SpawnProcess, Callable[[], tuple[int, set[int]]]]]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=supervise, args=(target, SETTINGS, sender))
    process.start()
    sender.close()

    def report() -> tuple[int, set[int]]:
        assert receiver.poll(LIMIT)
        port, pids = receiver.recv()
        return port, set(pids)

    try:
        yield process, report
    finally:
        process.kill()
        process.join()
        receiver.close()


def ask(port: int, path: str = "/") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
    sock.sendall(b"GET %b HTTP/1.0\r\n\r\n" % path.encode())
    return sock


def answer(sock: socket.socket) -> int:
    with sock:
        received = b""
        while data := sock.recv(65536):
            received += data
    return int(received.partition(b"\r\n\r\n")[2])


def ended(process: SpawnProcess) -> int | None:
    process.join(LIMIT)
    return process.exitcode


def test_all_workers_serve_and_a_signal_drains_them() -> None:
    with supervisor() as (process, report):
        port, pids = report()
        assert len(pids) == 2
        answers: set[int] = set()
        while answers != pids:
            answers.add(answer(ask(port)))
            assert answers <= pids
        process.terminate()
        assert ended(process) == 0


def test_a_dead_worker_is_replaced_on_the_same_port() -> None:
    with supervisor() as (process, report):
        port, pids = report()
        victim = min(pids)
        os.kill(victim, signal.SIGKILL)
        again, others = report()
        assert again == port
        assert len(others) == 2
        assert others & pids == pids - {victim}
        assert answer(ask(port)) in others
        process.terminate()
        assert ended(process) == 0


def test_a_second_signal_cuts() -> None:
    with supervisor() as (process, report):
        port, pids = report()
        with ask(port, "/stay") as sock:
            received = b""
            while not any(str(pid).encode() in received for pid in pids):
                received += sock.recv(65536)
            (other,) = (pid for pid in pids if str(pid).encode() not in received)
            gone = os.pidfd_open(other)
            process.terminate()
            wait([gone], LIMIT)
            os.close(gone)
            assert process.is_alive()
            os.kill(process.pid or 0, signal.SIGINT)
            with pytest.raises(ConnectionResetError):
                sock.recv(65536)
        assert ended(process) == 0


def test_workers_end_with_their_supervisor() -> None:
    with supervisor() as (process, report):
        _, pids = report()
        handles = [os.pidfd_open(pid) for pid in pids]
        process.kill()
        for handle in handles:
            assert wait([handle], LIMIT)
            os.close(handle)


def test_a_worker_that_never_gets_ready_ends_it_all() -> None:
    with supervisor(fail) as (process, _):
        assert ended(process) == 7


def test_a_unix_socket_is_not_shared() -> None:
    with pytest.raises(ConfigError, match="share a port, not a Unix socket"):
        Supervisor(work, ServerSettings(uds="a.sock"), 2)
