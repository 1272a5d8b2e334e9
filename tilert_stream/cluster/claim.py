"""One request's claim on one decode node: asked for, granted, given back.

A node that may have granted is told of the end: it counts from before the node is asked.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from ..errors import Busy, InvalidRequest, NotReady
from ..http.client.errors import ConnectFailed
from .errors import LayoutMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..events import GenerateRequest
    from ..http.client import Begun
    from .decode_call import DecodeCall
    from .grant import Grant
    from .janitor import Janitor
    from .pool import Member, Visit

__all__ = ("Claim",)

_attempts: Final = count(1)
"""Of this process: a cancel names its attempt, which it may overtake, or come long after."""
_NOT_GRANTED: Final = (Busy, NotReady, InvalidRequest, ConnectFailed, LayoutMismatch)


class Claim:
    """Nothing is claimed before ``ask``."""

    def __init__(
        self, request: GenerateRequest, member: Member[DecodeCall], janitor: Janitor
    ) -> None:
        self.request = request
        self.member = member
        self._janitor = janitor
        self._visit: Visit | None = None
        self._attempt = 0
        self.foretold: Grant | None = None
        """The grant as prefill may have been told it, and the node will be."""
        self._begun: Begun | None = None
        self.settled = True
        """The node holds nothing, or ends it by itself, or somebody else sees to that."""

    def enter(self) -> None:
        """Count the request as one of the node's, until ``step_back`` or ``leave``."""
        if self._visit is None:
            self._visit = self.member.visit()

    def step_back(self) -> None:
        """Count it no more. Sync, idempotent."""
        if self._visit is not None:
            visit, self._visit = self._visit, None
            visit.leave()

    def foretell(self) -> Grant | None:
        """The grant as it will be, for the first ``ask``; None: nobody knows. Sync."""
        self.foretold = self.member.node.foretell(self.request, self.member.requests)
        return self.foretold

    def begin(self, layout: Mapping[str, object] | None) -> None:
        """Ask for what was foretold, if that can be done now; ``ask`` has the answer. Sync."""
        if self.foretold is None:
            return
        attempt = next(_attempts)
        node = self.member.node
        self._begun = node.begin_reserve(self.request, attempt, layout, self.foretold)
        if self._begun is not None:
            self._attempt = attempt
            self.settled = False

    async def ask(self, layout: Mapping[str, object] | None, *, wait: float = 0) -> Grant:
        """Have the node hold a slot.

        :param wait: seconds that the node may take until one comes free.
        :raises ~tilert_stream.errors.Busy: none is free.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the request never fits.
        :raises ~tilert_stream.http.client.UpstreamError: it cannot be used.
        """
        node = self.member.node
        begun, self._begun = self._begun, None
        if begun is None:
            if self._attempt:
                # A name that was used may still be spoken of, by a prefill that was taken back.
                self.foretold = None
            if not self.settled:
                # The node takes no request twice.
                await node.cancel(self.request.id, self._attempt)
            self._attempt = next(_attempts)
            self.settled = False
        try:
            return await node.reserve(
                self.request,
                self._attempt,
                layout,
                wait=wait,
                foretold=self.foretold,
                begun=begun,
            )
        except _NOT_GRANTED:
            self.settled = True
            self.foretold = None
            raise

    def cancel(self) -> None:
        """Tell the node that the request has ended. Sync."""
        node, request, attempt = self.member.node, self.request.id, self._attempt
        self._janitor.submit(
            f"cancel of {request} at {self.member.name}", lambda: node.cancel(request, attempt)
        )

    def leave(self) -> None:
        """Give it back. Sync, idempotent; what the node may still hold, the janitor cancels."""
        self.step_back()
        if self._begun is not None:
            begun, self._begun = self._begun, None
            begun.close()
        if not self.settled:
            self.settled = True
            self.cancel()
