"""One connection of TileRT's stock prefill connector: the dialogue, from the hello to the end.

TileRT's sender never reads what a decode node answers, so one thing only keeps it from writing: no
hello. Every connection is therefore given a landing region of its own before its hello leaves, and
is closed without one when none is free. Whatever that peer does then, it meets nobody else's cache,
and its region is used again only after it has said ``done`` or has been gone for long enough.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tilert_stream.errors import Busy

from .errors import HandOffFailed, OutOfOrder, PeerLost
from .frames import FrameReader
from .messages import Abort, Claim, Commit
from .tilert_pd import SENDER_RANK, TilertDone, TilertRequest, encode

if TYPE_CHECKING:
    from .errors import ControlError
    from .frames import JSONObject
    from .link import Post
    from .messages import Message
    from .tilert_pd_decode import TilertInbox

__all__ = ("TilertSession",)

logger = logging.getLogger(__name__)


class TilertSession:
    """One connection of a TileRT prefill: the dialogue for a ``Link``.

    :param number: the connection's.
    """

    is_open = True

    def __init__(self, number: int, inbox: TilertInbox, post: Post) -> None:
        self._number = number
        self._inbox = inbox
        self._post = post
        self._reader = FrameReader()
        self._generation: int | None = None
        self._request: TilertRequest | None = None
        self.is_over = False
        self.next_deadline: float | None = None

    def begin(self) -> None:
        """Claim a region on the peer's behalf, and greet it; without one, hang up."""
        try:
            landing = self._inbox.admit(self, self._number)
        except Busy as error:
            logger.warning("connection %d of a TileRT prefill: %s", self._number, error.message)
            self.is_over = True
            return
        granted = landing.granted
        self._generation = granted.generation
        self._inbox.receiver.receive(
            self._number,
            Claim(
                request=granted.request,
                incarnation=granted.incarnation,
                generation=granted.generation,
                rank=SENDER_RANK,
                tokens=self._inbox.max_seq_len,
                nbytes=granted.region.nbytes,
                last_token=0,
            ),
        )
        self._post(encode(self._inbox.hello(granted.region).to_json()))
        self._be_patient()

    def _be_patient(self) -> None:
        self.next_deadline = self._inbox.clock() + self._inbox.patience

    def send(self, message: Message) -> None:
        """Say what the receiver says, as far as this dialect has words for it."""
        if isinstance(message, Abort):
            self._post(encode({"error": message.reason}))

    def receive(self, data: bytes) -> None:
        """Take bytes.

        :raises ControlError: the connection is to be closed.
        """
        for content in self._reader.feed(data):
            self._be_patient()
            if self._request is None:
                self._open(content)
            else:
                self._done(content, self._request)

    def _open(self, content: JSONObject) -> None:
        generation = self._generation
        assert generation is not None  # noqa: S101 - a connection without one is over
        request = TilertRequest.parse(content)
        self._request = request
        self._inbox.announce(self._number, generation, request)
        if request.seq_len > self._inbox.max_seq_len:
            self._inbox.refuse(generation, HandOffFailed("seq_len exceeds max_seq_len"))
        elif request.rank != SENDER_RANK:
            fault = f"rank {request.rank} sends nothing in this layout; rank {SENDER_RANK} does"
            self._inbox.refuse(generation, HandOffFailed(fault))

    def _done(self, content: JSONObject, request: TilertRequest) -> None:
        done = TilertDone.parse(content)
        if (done.rid, done.rank) != (request.rid, request.rank):
            raise OutOfOrder(
                f"done for {done.rid} (rank {done.rank}) on the connection of {request.rid}"
                f" (rank {request.rank})"
            )
        generation = self._generation
        assert generation is not None  # noqa: S101 - as above
        nbytes = self._inbox.reservations.region_bytes
        self._inbox.receiver.receive(self._number, Commit(generation, nbytes))

    def receive_end(self) -> None:
        """The peer has closed the connection.

        :raises ControlError: in the middle of a message.
        """
        self._reader.end()

    def ping(self) -> None:
        """Nothing: this dialect has no heartbeats."""

    def expire(self) -> None:
        """Close a connection that has said nothing for too long.

        :raises PeerLost: always.
        """
        raise PeerLost(f"the TileRT prefill said nothing for {self._inbox.patience:g} s")

    def end(self, error: ControlError | None) -> None:
        """End what the peer was writing."""
        if self._generation is not None and self._request is None and error is None:
            # It has asked for nothing, so that it never wrote: a port scan costs no quarantine.
            self._inbox.receiver.receive(self._number, Abort(self._generation, "it asked nothing"))
        self._inbox.leave(self._number)
