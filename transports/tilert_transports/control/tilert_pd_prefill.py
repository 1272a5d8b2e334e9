"""Our prefill side to TileRT's stock decode server: the state machine, then the hand-off itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias

import anyio

from tilert_stream.errors import Busy, TilertStreamError

from .errors import HandOffFailed, HandshakeRefused, OutOfOrder, PeerLost
from .frames import FrameReader
from .layout import Difference, describe
from .tilert_pd import TilertDone, TilertHello, encode, explain_version, refusal_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import ByteStream, SocketStream

    from .tilert_pd import TilertRequest

__all__ = ("TilertDrain", "TilertSender", "TilertWrite", "hand_off")

TilertWrite: TypeAlias = "Callable[[TilertHello], Awaitable[None]]"
"""Writes everything to the addresses in the hello. Cancelled when the decode node refuses."""
TilertDrain: TypeAlias = "Callable[[], Awaitable[bool]]"
"""Waits until nothing of a write that was given up can land any more."""


class TilertSender:
    """The prefill side of one hand-off to a TileRT decode node.

    Nothing is written before ``hello`` is there, and no ``done`` leaves after a refusal.

    :param layout_version: this node's.
    :param transport: this node's, ``mooncake`` or ``nixl``.
    """

    def __init__(self, request: TilertRequest, layout_version: int, transport: str) -> None:
        self._request = request
        self._layout_version = layout_version
        self._transport = transport
        self._reader = FrameReader()
        self._refusal: Busy | HandOffFailed | None = None
        self.hello: TilertHello | None = None
        """The decode node's, once it has been found to fit."""

    def receive(self, data: bytes) -> None:
        """Take bytes.

        :raises HandshakeRefused: the two nodes do not fit together.
        :raises ~tilert_stream.errors.Busy: the decode node has another transfer under way.
        :raises HandOffFailed: the decode node refuses the request.
        :raises ControlError: what came is no such message.
        """
        for content in self._reader.feed(data):
            if self.hello is None:
                hello = TilertHello.parse(content)
                self._check(hello)
                self.hello = hello
            else:
                self._refusal = refusal_of(content)
                raise self._refusal

    def request(self) -> bytes:
        """What to send once ``hello`` is there; then the writes may begin.

        :raises OutOfOrder: there is no hello yet.
        """
        if self.hello is None:
            raise OutOfOrder("the decode node has not said hello yet")
        return encode(self._request.to_json())

    def done(self) -> bytes:
        """What to send when everything has been written.

        :raises OutOfOrder: there is no hello yet.
        :raises ~tilert_stream.errors.Busy: a refusal has come.
        :raises HandOffFailed: a refusal has come.
        """
        if self._refusal is not None:
            raise self._refusal
        self.request()
        return encode(TilertDone(self._request.rid, self._request.rank).to_json())

    def receive_end(self) -> None:
        """The decode node has closed the connection.

        :raises ControlError: always; only this side ends it.
        """
        self._reader.end()
        raise PeerLost("the TileRT decode node closed the connection before it had everything")

    def _check(self, hello: TilertHello) -> None:
        found: list[Difference] = []
        if hello.layout_version != self._layout_version:
            found.append(
                Difference(
                    "layout_version",
                    explain_version(self._layout_version),
                    explain_version(hello.layout_version),
                    "give both nodes the same --model, --kv-cache-dtype and draft layer"
                    " (TILERT_PD_NO_MTP)",
                )
            )
        if hello.transport != self._transport:
            fix = "give both nodes the same --transport"
            found.append(Difference("transport", self._transport, hello.transport, fix))
        if hello.max_seq_len < self._request.seq_len:
            found.append(
                Difference(
                    "max_seq_len",
                    f"a prompt of {self._request.seq_len} tokens",
                    str(hello.max_seq_len),
                    "give the decode node a greater --max-seq-len",
                )
            )
        if found:
            raise HandshakeRefused(
                f"the TileRT decode node does not fit: {describe(tuple(found))}", tuple(found)
            )
        if hello.busy:
            # Advisory for TileRT's own sender, which then writes into the other's KV cache.
            raise Busy("the TileRT decode node is receiving another request", retry_after=1)


async def hand_off(
    host: str,
    port: int,
    sender: TilertSender,
    write: TilertWrite,
    drain: TilertDrain,
    *,
    connect_timeout: float = 60.0,
    refusal_time: float = 0.005,
    drain_timeout: float = 30.0,
) -> None:
    """Hand one request's KV cache over to a TileRT decode node.

    That node answers a request only if it refuses it, so nothing tells when its leave to write
    has been given: ``refusal_time`` is what a refusal is given to arrive before the writes begin.
    One that comes later stops them.

    :param connect_timeout: seconds until the hello is there.
    :raises PeerLost: nobody answers there, or the node closed the connection.
    :raises HandshakeRefused: the two nodes do not fit together.
    :raises ~tilert_stream.errors.Busy: the node has another transfer under way.
    :raises HandOffFailed: the node refuses the request.
    :raises Exception: what ``write`` raised.
    """
    stream = await _greeted(host, port, sender, connect_timeout)
    async with stream:
        await stream.send(sender.request())
        with anyio.move_on_after(refusal_time):
            await _listen(stream, sender)
        try:
            await _write(stream, sender, write)
            await stream.send(sender.done())
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(drain_timeout):
                await drain()
            raise


async def _greeted(
    host: str, port: int, sender: TilertSender, connect_timeout: float
) -> SocketStream:
    try:
        with anyio.fail_after(connect_timeout):
            stream = await anyio.connect_tcp(host, port)
            try:
                while sender.hello is None:
                    await _receive(stream, sender)
            except BaseException:
                await anyio.aclose_forcefully(stream)
                raise
            return stream
    except OSError as error:
        fault = str(error) or f"no hello within {connect_timeout:g} s"
        raise PeerLost(f"no TileRT decode node answers at {host} port {port}: {fault}") from error


async def _receive(stream: ByteStream, sender: TilertSender) -> None:
    try:
        sender.receive(await stream.receive())
    except anyio.EndOfStream:
        sender.receive_end()
    except anyio.BrokenResourceError as error:
        raise PeerLost(f"the connection to the TileRT decode node broke: {error}") from error


async def _listen(stream: ByteStream, sender: TilertSender) -> NoReturn:
    while True:
        await _receive(stream, sender)


async def _write(stream: ByteStream, sender: TilertSender, write: TilertWrite) -> None:
    """Write, unless the decode node says something: whatever it says is a refusal."""
    assert sender.hello is not None  # noqa: S101 - greeted
    failures: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def listen() -> None:
            try:
                await _listen(stream, sender)
            except TilertStreamError as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        try:
            await write(sender.hello)
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
            failures.append(error)
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
