"""The listening end of a transport over sockets: one thread accepts, one serves each peer.

In: connections. Out: ``serve(sock)`` on a thread of its own for each, until it returns. Serving is
blocking code, because bytes are received straight into a region by calls of many megabytes each.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from .latch import Latch
from .sockets import shut_down

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ("Listener",)

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 512
"""Each has a thread; a peer holds one."""
PAUSE: Final = 0.1
"""Seconds after a failed accept."""


class Listener:
    """Accepts until ``close``.

    :param sock: bound and listening, blocking; closed by ``close``.
    :param serve: called on a thread of its own with each connection, which is closed after it.
    """

    def __init__(self, sock: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        self._sock = sock
        self._serve = serve
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closing = threading.Event()
        self._running = 0
        self.ended = Latch()
        """Set when the last thread has let go of its connection, after ``close``."""
        self._start(self._accept)

    @property
    def connections(self) -> int:
        """Peers connected now."""
        return len(self._connections)

    def close(self) -> None:
        """Stop accepting and cut every connection. At once; ``ended`` tells when."""
        with self._lock:
            self._closing.set()
            sockets = [self._sock, *self._connections]
        for sock in sockets:
            shut_down(sock)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        # A daemon: a peer that never hangs up must not keep the process from ending.
        with self._lock:
            self._running += 1
        thread = threading.Thread(target=target, args=args, name="tilert-listener", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._end()
            raise

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
            last = self._running == 0
        if last:
            self.ended.set()

    def _accept(self) -> None:
        with self._sock:
            while True:
                try:
                    connection, _ = self._sock.accept()
                except OSError as error:
                    if self._closing.is_set():
                        break
                    logger.warning("a transport's listener could not accept: %s", error)
                    # Out of descriptors: accept would fail again at once, and nothing tells when
                    # one is free. Closing ends the wait.
                    self._closing.wait(PAUSE)
                    continue
                with self._lock:
                    refuse = self._closing.is_set() or len(self._connections) >= MAX_CONNECTIONS
                    if not refuse:
                        self._connections.add(connection)
                if refuse:
                    connection.close()
                    continue
                try:
                    self._start(self._serve_one, connection)
                except RuntimeError as error:
                    # No thread to be had: this peer is refused, the others go on.
                    logger.warning("a transport's listener could not serve a peer: %s", error)
                    self._let_go(connection)
        self._end()

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        except OSError as error:
            logger.info("a transport's peer has gone: %s", error)
        except Exception:
            # A peer's bytes must never end the process; this connection alone is given up.
            logger.exception("serving a transport's peer failed")
        finally:
            self._let_go(connection)
            self._end()

    def _let_go(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()
