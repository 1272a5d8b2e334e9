"""The only thread that calls a NIXL agent.

In: commands, and transfers to post, from any thread. Out: outcomes, told to the lane each transfer
came from. NIXL offers neither an event nor a blocking wait for a transfer's end, so this thread
looks: without pause for 100 µs after anything happened, then at growing intervals of 20 µs to 1 ms.
With nothing on its way it sleeps, and a command wakes it at any time.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from .errors import PeerLost, TransferFailed, TransportClosed, TransportError
from .latch import Latch
from .nixl_binding import load, make_agent

if TYPE_CHECKING:
    from collections.abc import Callable

    from .nixl_binding import Binding, NativeAgent, Status, TransferHandle

__all__ = ("NixlOwner", "Request")

SPIN_SECONDS: Final = 100e-6
FIRST_PAUSE: Final = 20e-6
LONGEST_PAUSE: Final = 1e-3


class Request(Protocol):
    """One NIXL transfer. Every method is called on the owner's thread."""

    @property
    def given_up(self) -> bool:
        """Nobody wants it any more: it is not posted, if it has not been yet."""
        ...

    def prepare(self, agent: NativeAgent, binding: Binding) -> TransferHandle:
        """Create NIXL's handle. Whatever it raises, nothing has moved."""
        ...

    def finish(self, error: TransportError | None, seconds: float) -> None:
        """It has ended; ``error.settled`` is False if bytes may still land."""
        ...


@dataclass(slots=True)
class _Posted:
    request: Request
    handle: TransferHandle
    begin: float


class NixlOwner:
    """Starts its thread at once; the thread makes the agent, which takes a second.

    :param name: the agent's, unique among all that ever meet.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._posted: list[_Posted] = []
        self._failure: TransportError | None = None
        self._agent: NativeAgent | None = None
        self._binding: Binding | None = None
        self.remotes: Counter[str] = Counter()
        """Lanes that use a remote agent, by its name; for the thread alone."""
        self.ended = Latch()
        """Set at the thread's end."""
        # A daemon: a transfer to a peer that hangs stays on its way for ever.
        threading.Thread(target=self._run, name="tilert-nixl-owner", daemon=True).start()

    def attempt(
        self, function: Callable[[NativeAgent, Binding], None], fail: Callable[[Exception], object]
    ) -> None:
        """Run ``function`` on the thread; what it raises goes to ``fail``. From any thread."""

        def guarded() -> None:
            try:
                function(*self._ready())
            except Exception as error:  # noqa: BLE001 - NIXL's classes have no common base
                fail(error)

        self._commands.put(guarded)

    def post(self, request: Request) -> None:
        """Start a transfer. From any thread."""
        self._commands.put(lambda: self._post(request))

    def stop(self) -> None:
        """End the thread, and the agent, when the last transfer is over. From any thread."""
        self._commands.put(None)

    # --- on the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._binding = load()
            self._agent = make_agent(self._binding, self._name)
        except TransportError as error:
            self._failure = error
        self._serve()
        # Ends the agent, which disconnects its peers: they must not go on writing here.
        self._agent = None
        self._failure = TransportClosed("the NIXL agent has ended")
        self._serve_the_rest()
        self.ended.set()

    def _ready(self) -> tuple[NativeAgent, Binding]:
        if self._failure is not None:
            raise self._failure
        assert self._agent is not None  # noqa: S101 - either it was made, or that failed
        assert self._binding is not None  # noqa: S101 - as above
        return self._agent, self._binding

    def _serve(self) -> None:
        stopping = False
        pause, quiet_since = 0.0, 0.0
        while self._posted or not stopping:
            event = False
            with suppress(Empty):
                command = self._next_command(pause)
                event = True
                if command is None:
                    stopping = True
                else:
                    command()
            event |= self._look()
            if event:
                pause, quiet_since = 0.0, perf_counter()
            elif perf_counter() - quiet_since > SPIN_SECONDS:
                pause = min(max(pause * 1.5, FIRST_PAUSE), LONGEST_PAUSE)

    def _next_command(self, pause: float) -> Callable[[], None] | None:
        if not self._posted:
            return self._commands.get()
        if pause == 0:
            return self._commands.get_nowait()
        return self._commands.get(timeout=pause)

    def _serve_the_rest(self) -> None:
        """Commands that came too late: whoever gave them must hear that nothing runs."""
        with suppress(Empty):
            while True:
                command = self._commands.get_nowait()
                if command is not None:
                    command()

    def _post(self, request: Request) -> None:
        if request.given_up:
            request.finish(None, 0.0)
            return
        begin = perf_counter()
        try:
            agent, binding = self._ready()
            handle = request.prepare(agent, binding)
        except TransportError as error:
            request.finish(error, 0.0)
        except Exception as error:  # noqa: BLE001 - NIXL's classes have no common base
            refused = TransferFailed(f"NIXL refused the write: {error!r}")
            refused.__cause__ = error
            request.finish(refused, 0.0)
        else:
            posted = _Posted(request, handle, begin)
            if not self._over(posted, agent.postXferReq):
                self._posted.append(posted)

    def _look(self) -> bool:
        """Ask for the state of every transfer; True if one of them is over."""
        if not self._posted:
            return False
        agent, _ = self._ready()
        before = len(self._posted)
        self._posted = [
            posted for posted in self._posted if not self._over(posted, agent.getXferStatus)
        ]
        return len(self._posted) < before

    def _over(self, posted: _Posted, ask: Callable[[TransferHandle], Status]) -> bool:
        agent, binding = self._ready()
        error: TransportError | None = None
        try:
            status = ask(posted.handle)
        except Exception as caught:  # noqa: BLE001 - NIXL's classes have no common base
            # It does not say what the peer's side has taken, or still takes.
            if isinstance(caught, binding.nixlRemoteDisconnectError):
                error = PeerLost("the NIXL peer has gone", settled=False)
            else:
                error = TransferFailed(f"NIXL reports a failure: {caught!r}", settled=False)
            error.__cause__ = caught
        else:
            if status == binding.NIXL_IN_PROG:
                return False
            if status != binding.NIXL_SUCCESS:
                error = TransferFailed(f"NIXL reports a failure: {status}", settled=False)
        agent.releaseXferReq(posted.handle)
        posted.request.finish(error, perf_counter() - posted.begin)
        return True
