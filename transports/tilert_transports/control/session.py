"""One connection's dialogue in our own dialect: bytes → handshake → messages, both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import HandshakeRefused, PeerLost
from .frames import MAX_FRAME_BYTES, FrameReader, encode_frame
from .handshake import DecodeHandshake, PrefillHandshake
from .messages import Ping, parse_message, to_json
from .sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable

    from .auth import ClusterKey
    from .errors import ControlError
    from .frames import JSONObject
    from .hello import Hello
    from .link import Post
    from .messages import Message
    from .receiver import Receiver

__all__ = ("DecodeSession", "PrefillSession")


class DecodeSession:
    """The decode node's side.

    :param number: the connection's, for the receiver.
    :param limit: bytes of a frame before the handshake is over.
    :param ended: called once, when the connection has ended.
    """

    is_over = False
    next_deadline: float | None = None

    def __init__(
        self,
        number: int,
        receiver: Receiver,
        hello: Hello,
        key: ClusterKey | None,
        post: Post,
        limit: int,
        ended: Callable[[], None],
    ) -> None:
        self._number = number
        self._receiver = receiver
        self._handshake = DecodeHandshake(hello, key)
        self._post = post
        self._reader = FrameReader(limit)
        self._ended = ended
        self._pings = 0

    @property
    def peer(self) -> Hello | None:
        """The prefill node, once the handshake is over."""
        return self._handshake.peer

    @property
    def is_open(self) -> bool:
        """Whether the handshake is over."""
        return self._handshake.peer is not None

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._post(encode_frame(to_json(message)))

    def begin(self) -> None:
        """Send the challenge."""
        self._post(encode_frame(self._handshake.open()))

    def receive(self, data: bytes) -> None:
        """Take bytes.

        :raises ControlError: the connection is to be closed, after what was posted has left.
        """
        for content in self._reader.feed(data):
            if self._handshake.peer is None:
                self._open(content)
            else:
                self._receiver.receive(self._number, parse_message(content))

    def _open(self, content: JSONObject) -> None:
        try:
            answer = self._handshake.receive(content)
        except HandshakeRefused as error:
            self._post(encode_frame(self._handshake.refusal(error)))
            if self._handshake.grant is not None:
                self._receiver.turn_away(self._handshake.grant, error)
            raise
        self._post(encode_frame(answer))
        self._reader.max_bytes = MAX_FRAME_BYTES
        peer = self._handshake.peer
        assert peer is not None  # noqa: S101 - receive returned
        self._receiver.connect(self._number, peer.node)

    def receive_end(self) -> None:
        """The peer has closed its side.

        :raises ControlError: in the middle of a frame.
        """
        self._reader.end()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._pings += 1
        self.send(Ping(self._pings))

    def expire(self) -> None:
        """Nothing: leases end for all connections together."""

    def end(self, error: ControlError | None) -> None:
        """End what the peer was writing."""
        if self.is_open:
            self._receiver.disconnect(self._number)
        self._ended()


class PrefillSession:
    """The prefill node's side.

    :param opened: called once, when the handshake is over.
    :param ended: called once, when the connection has ended, with the reason.
    :param clock: monotonic seconds.
    """

    is_over = False

    def __init__(
        self,
        hello: Hello,
        key: ClusterKey | None,
        post: Post,
        clock: Callable[[], float],
        opened: Callable[[], None],
        ended: Callable[[ControlError], None],
    ) -> None:
        self._handshake = PrefillHandshake(hello, key)
        self._post = post
        self._clock = clock
        self._opened = opened
        self._ended = ended
        self._reader = FrameReader()
        self._sender: Sender | None = None

    @property
    def peer(self) -> Hello | None:
        """The decode node, once the handshake is over."""
        return self._handshake.peer

    @property
    def sender(self) -> Sender:
        """Where hand-offs are made.

        :raises PeerLost: the handshake is not over.
        """
        if self._sender is None:
            raise PeerLost("the decode node has not answered yet")
        return self._sender

    @property
    def is_open(self) -> bool:
        """Whether the handshake is over."""
        return self._sender is not None

    @property
    def next_deadline(self) -> float | None:
        """When the first lease runs out."""
        return None if self._sender is None else self._sender.next_deadline

    def _send(self, message: Message) -> None:
        self._post(encode_frame(to_json(message)))

    def begin(self) -> None:
        """Nothing: the decode node speaks first."""

    def receive(self, data: bytes) -> None:
        """Take bytes.

        :raises ControlError: the connection is to be closed.
        """
        for content in self._reader.feed(data):
            if self._sender is None:
                self._open(content)
            else:
                self._sender.receive(parse_message(content))

    def _open(self, content: JSONObject) -> None:
        try:
            answer = self._handshake.receive(content)
        except HandshakeRefused as error:
            last = self._handshake.refusal(error)
            if last is not None:
                self._post(encode_frame(last))
            raise
        if answer is not None:
            self._post(encode_frame(answer))
        peer = self._handshake.peer
        if peer is not None:
            self._sender = Sender(peer.node, self._send, self._clock)
            self._opened()

    def receive_end(self) -> None:
        """The peer has closed its side.

        :raises ControlError: always; a decode node does not hang up while it lives.
        """
        self._reader.end()
        raise PeerLost("the decode node has closed the connection")

    def ping(self) -> None:
        """Ask for a sign of life, which renews all leases."""
        self.sender.ping()

    def expire(self) -> None:
        """Stop what is written under a lease that has run out."""
        self.sender.expire()

    def end(self, error: ControlError | None) -> None:
        """End all hand-offs."""
        if self._sender is not None:
            self._sender.disconnect()
        self._ended(error or PeerLost("the connection was closed"))
