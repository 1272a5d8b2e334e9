"""One connection to a server: a rendered request in, the head of the answer and its bytes out.

No timer and no cancel scope is entered for a piece of a body.
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

import anyio
import h11

from ..errors import ClientGone
from ..sockets import close, receive_ready
from .errors import UpstreamClosed, UpstreamInvalid, UpstreamTimeout
from .head import make_head, read_plain_head
from .reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from .head import Head
    from .request import Request

__all__ = ("ClientConnection",)

INTERIM_MAX: Final = 16
"""Answers of the 1xx kind that may come before the real one."""

_END: Final = h11.EndOfMessage()


class ClientConnection:
    """A connected socket, which carries one exchange at a time.

    :param label: what the server is called in errors.
    :param write_stall_timeout: seconds that a write may wait without one byte being taken.
    :param max_header_bytes: of an answer's head.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        label: str,
        write_stall_timeout: float | None,
        max_header_bytes: int,
    ) -> None:
        self._sock = sock
        self._label = label
        self._write_stall_timeout = write_stall_timeout
        self._max_header_bytes = max_header_bytes
        self._reader = Reader(sock)
        self._sent = 0
        self._ended = False
        self.answered = False
        """A byte of the present answer has come."""
        self.untouched = False
        """After a failure: the server has seen no byte of the request, which is certain."""
        self.idle_since = 0.0

    # --- between exchanges -------------------------------------------------------------------

    def is_stale(self) -> bool:
        """Whether the server has closed it, or has said something unasked. Never a checkpoint."""
        try:
            return self._reader.ready or receive_ready(self._sock) is not None
        except ClientGone:
            return True

    async def wait_ended(self) -> None:
        """Wait until the server closes it, or says something unasked. Always a checkpoint."""
        await self._reader.wait()

    def close(self) -> None:
        """Close now; the server sees it at once. Idempotent."""
        self._reader.close()
        close(self._sock)

    # --- one exchange ------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Send of ``request`` what goes at once; ``exchange`` sends the rest, or fails. Sync."""
        self.answered = False
        with suppress(OSError):
            self._sent = self._sock.send(request.data)
        # Its answer takes a while, and so did getting here.
        self._reader.let_others_pass()

    async def exchange(self, request: Request, head_timeout: float | None) -> Head:
        """Send ``request`` and read up to the head of its answer; closed if that fails.

        What ``begin`` has sent is not sent again.

        :param head_timeout: seconds to wait for the head, once all is sent; and again for the
            rest of it, if it comes in pieces.
        :raises UpstreamClosed: the server closed the connection, or reset it.
        :raises UpstreamInvalid: the answer is no HTTP/1.1, or its head is too large.
        :raises UpstreamTimeout: the server took nothing, or did not answer.
        """
        try:
            if not self._sent:
                self.begin(request)
            unsent = None
            if self._sent < len(request.data):
                unsent = await self._write(request.data)
            begin = await self._reader.receive_within(head_timeout)
            if not begin:
                self._miss(begin, unsent, head_timeout)
            self.answered = True
            head = read_plain_head(
                begin, limit=self._max_header_bytes, bodiless=request.head.method == b"HEAD"
            )
            if head is None:
                head = await self._read_head(request.head, begin, unsent, head_timeout)
        except ClientGone as error:
            self._fail()
            raise self._broken(error) from error
        except BaseException:
            self._fail()
            raise
        self._sent = 0
        # Whoever answers early may never read the rest, and would wait for it for ever.
        return head if unsent is None else head._replace(keep_alive=False)

    def _fail(self) -> None:
        self.untouched = not self.answered and self._none_taken()
        self.close()

    def _miss(
        self, begin: bytes | None, unsent: OSError | None, head_timeout: float | None
    ) -> NoReturn:
        """Say why no byte of an answer has come."""
        if begin is None:
            raise self._late(head_timeout)
        self._ended = True
        raise self._unanswered() from unsent

    def _late(self, head_timeout: float | None) -> UpstreamTimeout:
        return UpstreamTimeout(f"{self._label} did not answer in {head_timeout:g} s")

    async def _write(self, data: bytes) -> OSError | None:
        """Send ``data``; why not all of it went out: an answer may be there all the same.

        :raises UpstreamTimeout: nothing was taken for ``write_stall_timeout`` seconds.
        """
        view = memoryview(data)
        while self._sent < len(view):
            try:
                self._sent += self._sock.send(view[self._sent :])
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._wait_writable()
            except OSError as error:
                return error
        return None

    async def _wait_writable(self) -> None:
        with anyio.move_on_after(self._write_stall_timeout):
            await anyio.wait_writable(self._sock)
            return
        raise UpstreamTimeout(
            f"{self._label} took nothing of the request for {self._write_stall_timeout:g} s"
        )

    def _none_taken(self) -> bool:
        """Whether it is certain that the server has seen no byte of the request.

        Its FIN acknowledges all that it had received: what is unacknowledged after it (SIOCOUTQ)
        came too late. A reset acknowledges nothing, and says nothing; nor does a Unix socket.
        """
        if not self._sent:
            return True
        if not self._ended or self._sock.family == socket.AF_UNIX:
            return False
        count = fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(count, sys.byteorder) >= self._sent

    async def _read_head(
        self, request: h11.Request, begin: bytes, unsent: OSError | None, within: float | None
    ) -> Head:
        with anyio.move_on_after(within):
            return await self._read_parts(request, begin, unsent)
        raise self._late(within)

    async def _read_parts(self, request: h11.Request, begin: bytes, unsent: OSError | None) -> Head:
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._max_header_bytes)
        parser.send(request)
        parser.send(_END)
        parser.receive_data(begin)
        for _ in range(INTERIM_MAX):
            try:
                while (event := parser.next_event()) is h11.NEED_DATA:
                    data = await self.receive()
                    if not data:
                        raise self._unanswered() from unsent
                    parser.receive_data(data)
            except h11.ProtocolError as error:
                raise UpstreamInvalid(
                    f"{self._label} did not answer in HTTP/1.1: {str(error).partition(':')[0]}"
                ) from error
            if isinstance(event, h11.Response):
                return make_head(
                    event.status_code,
                    event.http_version,
                    tuple(event.headers),
                    parser.trailing_data[0],
                    bodiless=request.method == b"HEAD",
                )
        raise UpstreamInvalid(f"{self._label} sent {INTERIM_MAX} interim answers and no real one")

    def _unanswered(self) -> UpstreamClosed:
        return UpstreamClosed(
            f"{self._label} closed the connection before it had answered", retry_after=1
        )

    async def receive(self) -> bytes:
        """What is there, or what comes first; empty at the end of the input.

        A checkpoint only where it has to wait, or after so many bytes.

        :raises UpstreamClosed: the connection was reset.
        """
        try:
            data = await self._reader.receive()
        except ClientGone as error:
            raise self._broken(error) from error
        self._ended = not data
        return data

    def on_ready(self, callback: Callable[[], object] | None) -> None:
        """Have ``callback`` called when ``receive_ready`` has something; None: no more. Sync."""
        self._reader.on_ready(callback)

    def receive_ready(self) -> bytes | None:
        """What is there; None: nothing, empty at the end of the input. Never a checkpoint.

        :raises UpstreamClosed: the connection was reset.
        """
        try:
            return self._reader.take()
        except ClientGone as error:
            raise self._broken(error) from error

    def _broken(self, error: ClientGone) -> UpstreamClosed:
        return UpstreamClosed(
            f"the connection to {self._label} broke: {error.__cause__ or error}", retry_after=1
        )
