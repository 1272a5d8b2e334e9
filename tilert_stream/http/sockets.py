"""Bytes in and out of one non-blocking socket, with TLS or without.

A write is ``sock.send``; only when the kernel takes no more does it wait, and only then are a
cancel scope and a stall timer paid for. A read waits first: between requests nothing is there.
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import struct
import sys
import termios
from contextlib import suppress

import anyio
import anyio.lowlevel

from .errors import ClientGone, WriteStalled
from .tls import say_goodbye

__all__ = (
    "SocketWriter",
    "close",
    "end_output",
    "receive_ready",
    "reset",
    "wait_delivered",
)

READ_BYTES = 64 * 1024
FAIR_BYTES = 256 * 1024
"""So much may be written without letting other tasks run: an app that never awaits anything but
``send``, with a client that reads as fast, would otherwise have the event loop to itself."""


class SocketWriter:
    """Writes to ``sock`` in order, whichever tasks they come from.

    :param stall_timeout: seconds that a write may wait without one byte being taken.
    """

    __slots__ = ("_failure", "_lock", "_scope", "_sock", "_stall_timeout", "_unyielded")

    def __init__(self, sock: socket.socket, stall_timeout: float | None) -> None:
        self._sock = sock
        self._stall_timeout = stall_timeout
        self._failure: ClientGone | None = None
        self._lock: anyio.Lock | None = None
        self._scope: anyio.CancelScope | None = None
        self._unyielded = 0

    async def write(self, data: bytes) -> None:
        """Hand all of ``data`` to the kernel.

        A checkpoint only when the kernel takes no more, or after every 256 KiB: a token's write
        costs one system call.

        :raises ClientGone: the connection is broken, or an earlier write was cut short.
        :raises WriteStalled: nothing was taken for ``stall_timeout`` seconds.
        """
        rest = self.begin(data)
        if rest is not None:
            await self.finish(rest)

    def begin(self, data: bytes) -> memoryview | None:
        """``write`` as far as it goes at once; None: that was all. Sync.

        :returns: what ``finish`` is to be called with, and at once; empty if others are to run.
        :raises ClientGone: as ``write``.
        """
        if self._lock is not None and self._lock.locked():
            return memoryview(data)
        sent = self._send(data)
        if sent == len(data):
            self._unyielded += sent
            if self._unyielded <= FAIR_BYTES:
                return None
        return memoryview(data)[sent:]

    async def finish(self, rest: memoryview) -> None:
        """End what ``begin`` has begun. Always a checkpoint.

        :raises ClientGone: as ``write``.
        :raises WriteStalled: as ``write``.
        """
        self._unyielded = 0
        if not rest:
            await anyio.lowlevel.checkpoint()
            return
        if self._lock is None:
            self._lock = anyio.Lock()
        await self._write_slowly(self._lock, rest)

    def fail(self, failure: ClientGone) -> None:
        """Make every write raise ``failure`` from now on, one that is waiting included."""
        if self._failure is None:
            self._failure = failure
        if self._scope is not None:
            self._scope.cancel()

    def _send(self, data: bytes | memoryview) -> int:
        if self._failure is not None:
            raise self._failure
        try:
            return self._sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            self._failure = ClientGone(f"writing failed: {error}")
            raise self._failure from error

    async def _write_slowly(self, lock: anyio.Lock, view: memoryview) -> None:
        try:
            async with lock:
                while view:
                    await self._wait_writable()
                    view = view[self._send(view) :]
        except BaseException:
            # What is left of this write can never follow: a later one would garble the framing.
            self.fail(ClientGone("an earlier write was cut short"))
            raise

    async def _wait_writable(self) -> None:
        if self._failure is not None:
            raise self._failure
        with anyio.move_on_after(self._stall_timeout) as self._scope:
            await anyio.wait_writable(self._sock)
        stalled = self._scope.cancelled_caught
        self._scope = None
        if stalled and self._failure is None:
            self._failure = WriteStalled(f"the client took nothing for {self._stall_timeout} s")
            raise self._failure


def receive_ready(sock: socket.socket) -> bytes | None:
    """What can be read without waiting: bytes, empty at the end of the input, None for nothing.

    :raises ClientGone: the connection was reset.
    """
    try:
        return sock.recv(READ_BYTES)
    except (BlockingIOError, ssl.SSLWantReadError):
        return None
    except ssl.SSLZeroReturnError:
        # Both sides have said goodbye.
        return b""
    except OSError as error:
        raise ClientGone(f"reading failed: {error}") from error


def end_output(sock: socket.socket) -> None:
    """Let the client read the end of the stream; what it sends can still be read."""
    say_goodbye(sock)
    # The connection may have been reset in the meantime: then there is nobody to tell.
    with suppress(OSError):
        # Not SSLSocket's own, which forgets its keys: what comes could be read no more.
        socket.socket.shutdown(sock, socket.SHUT_WR)


def close(sock: socket.socket) -> None:
    """Close; what was written still reaches the client, followed by the end of the stream."""
    if sock.fileno() != -1:
        say_goodbye(sock)
        _close(sock)


def _close(sock: socket.socket) -> None:
    anyio.notify_closing(sock)
    sock.close()


def reset(sock: socket.socket) -> None:
    """Close so that a TCP client sees an error; what it has not acknowledged is lost.

    A Unix socket knows no reset: there it is a close. With TLS there is no ``close_notify``.
    """
    if sock.fileno() != -1:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        _close(sock)


async def wait_delivered(sock: socket.socket, limit: float) -> None:
    """Wait until the peer's kernel has acknowledged all that was written, or ``limit`` seconds.

    The kernel has a counter for this (SIOCOUTQ) but no event, and its own linger ends in the very
    FIN that must not be sent; so this asks, 1 ms after the write and then ever more rarely.
    """
    pause = 0.001
    with anyio.move_on_after(limit):
        while _unacknowledged(sock):
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.1)


def _unacknowledged(sock: socket.socket) -> int:
    count = fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(count, sys.byteorder)
