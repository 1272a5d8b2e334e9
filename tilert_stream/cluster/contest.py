"""Every decode node asked at once; the first to give a slot has the request.

In: the claim of the request at the head of a router's line. Out: the node that granted. A node of
ours answers when a slot comes free; where nothing tells of that (TileRT's own nodes, one that is
away), it is asked again after a pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from anyio import create_task_group, current_time, move_on_after

from ..errors import Busy, NotReady, TilertStreamError
from ..http.client.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .claim import Claim
    from .decode_call import DecodeCall
    from .grant import Grant
    from .pool import Member, Pool

__all__ = ("Contest",)

LONGEST_WAIT: Final = 60.0
"""Seconds for which a node is asked to wait. A router that vanishes without closing its connection
stands in the node's line no longer."""
PAUSE: Final = 0.25
"""Seconds until a node that cannot wait is asked again, unless a request of ours leaves it."""


class Contest:
    """One request, and the nodes that may take it.

    :param make_claim: on one of them.
    """

    def __init__(
        self,
        pool: Pool[DecodeCall],
        make_claim: Callable[[Member[DecodeCall]], Claim],
        layout: Mapping[str, object] | None,
        *,
        wait: float,
    ) -> None:
        self._pool = pool
        self._make_claim = make_claim
        self._layout = layout
        self._wait = min(wait, LONGEST_WAIT)
        self._refused: dict[str, TilertStreamError] = {}
        """The latest answers of those that do not hold a place in line for us."""
        self._won: tuple[Claim, Grant] | None = None
        self._failure: TilertStreamError | None = None

    async def run(self) -> tuple[Claim, Grant]:
        """Wait until some node gives a slot.

        :raises ~tilert_stream.errors.ContextLengthExceeded: the request never fits.
        :raises ~tilert_stream.errors.TilertStreamError: no node can be used, and none is busy.
        """
        try:
            await self._stand_everywhere()
        except BaseException:
            if self._won is not None:
                self._won[0].leave()  # cancelled in the moment of winning
            raise
        if self._won is not None:
            return self._won
        raise self._failure or self._pool.failure(list(self._refused.values()))

    async def _stand_everywhere(self) -> None:
        async with create_task_group() as tasks:

            async def stand_at(member: Member[DecodeCall]) -> None:
                claim = self._make_claim(member)
                try:
                    await self._stand_at(member, claim)
                finally:
                    if self._won is None or self._won[0] is not claim:
                        claim.leave()
                tasks.cancel_scope.cancel()

            for member in self._pool.members:
                tasks.start_soon(stand_at, member)

    async def _stand_at(self, member: Member[DecodeCall], claim: Claim) -> None:
        """Return when the contest is over."""
        while True:
            self._refused.pop(member.name, None)
            asked = current_time()
            try:
                grant = await claim.ask(self._layout, wait=self._wait)
            except (Busy, NotReady, UpstreamError) as error:
                self._pool.note(member, error)
                self._refused[member.name] = error
                if self._nobody_is_left():
                    return
                if not isinstance(error, Busy):
                    pause = self._pool.shun
                elif current_time() - asked < self._wait:
                    pause = PAUSE
                else:
                    continue  # the node has waited
                with move_on_after(pause):
                    await member.wait_left()
            except TilertStreamError as error:
                self._failure = error
                return
            else:
                member.shunned_until = 0.0
                if self._won is None:
                    claim.enter()
                    self._won = claim, grant
                return

    def _nobody_is_left(self) -> bool:
        return len(self._refused) == len(self._pool.members) and not any(
            isinstance(error, Busy) for error in self._refused.values()
        )
