"""Blocking socket calls that transports share: whole messages in, whole vectors out.

In and out: bytes of regions, never copied on the way. All of it runs on transports' own threads.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

__all__ = ("IOV_MAX", "advance", "receive_exactly", "shut_down")

IOV_MAX: Final = 1024
"""Buffers that one system call takes, as in limits.h of Linux."""


def receive_exactly(sock: socket.socket, nbytes: int) -> bytes:
    """The next ``nbytes`` bytes; fewer if the stream ends before.

    :raises TimeoutError: the socket's time-out passed without a byte.
    """
    data = bytearray()
    while len(data) < nbytes:
        piece = sock.recv(nbytes - len(data), socket.MSG_WAITALL)
        if not piece:
            break
        data += piece
    return bytes(data)


def advance(views: list[memoryview], begin: int, nbytes: int) -> int:
    """Move past ``nbytes`` bytes of ``views``, of which those before ``begin`` are done.

    :returns: the first view that is not done; it is cut to what is left of it.
    """
    while begin < len(views) and nbytes >= len(views[begin]):
        nbytes -= len(views[begin])
        begin += 1
    if nbytes:
        views[begin] = views[begin][nbytes:]
    return begin


def shut_down(sock: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """End a connection, from any thread: whoever sleeps in a call on it wakes.

    Closing would leave them asleep, and its number free for another file.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(how)
