"""One task asleep in the event loop, or a call that waits there, and any thread that may wake it.

The smallest wake that asyncio and trio have: a task's next step, brought into the loop. It is paid
once a chain of every stream, so this is the one place that talks to both event loops itself;
``anyio.Event``, the portable alternative, costs an asyncio loop one more turn and about 15 µs.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Protocol, cast

from anyio.lowlevel import current_token

from .wakeup import wakeup_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from contextvars import Context

    import trio

    from .wakeup import Wakeup

    _Call = tuple[Callable[[object], object], object, Context]

__all__ = ("Parking", "make_parking")


class Parking(Protocol):
    """A parking place for one task, or for one call in its stead."""

    def park(self) -> Awaitable[None]:
        """Sleep until ``unpark``. May wake without cause: check the condition again."""
        ...

    def park_call(self, function: Callable[[object], object], argument: object) -> None:
        """Have the event loop call ``function(argument)`` at the next ``unpark``, once. Sync.

        It must not raise, nor care for the task that it may run inside of; it runs in the context
        of whoever asks here.
        """
        ...

    def forget(self) -> None:
        """Take back ``park_call``. Sync, idempotent."""
        ...

    def another(self) -> Parking:
        """A further place in the same event loop, which need not be asked for. Sync."""
        ...

    def unpark(self) -> bool:
        """Wake the parked task, from any thread; nothing happens if none is parked.

        Returns False if the event loop has ended: nobody will ever wake.
        """
        ...

    def unpark_at_once(self) -> bool:
        """``unpark``; on the event loop's own thread what is parked runs now, if it can.

        A call does; a task only where the loop itself has called whoever calls this, since one task
        cannot step another, and on asyncio. It runs inside of this call then, a task up to where it
        next waits: hold no lock, and be ready for whatever it does. A turn of the loop is saved,
        which is a system call.
        """
        ...


class _AsyncioParking:
    """What its task awaits is the place itself, by the protocol that asyncio's tasks have for it.

    A future would do: setting its result schedules the task's next step. Here that step itself is
    what is brought into the loop, which saves a wake one turn of it.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_calls",
        "_cancelled",
        "_loop",
        "_steps",
        "_thread",
        "_wakeup",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, wakeup: Wakeup) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._wakeup = wakeup
        self._thread = threading.get_ident()
        self._steps: list[_Call] = []
        """What takes the parked task on, with what, and in which context; empty while none is
        parked."""
        self._calls: list[_Call] = []
        """What waits in a task's stead, likewise."""
        self._cancelled: tuple[object, ...] | None = None
        """The arguments of the ``CancelledError`` that the task is woken with."""

    def park(self) -> Awaitable[None]:
        return self

    def park_call(self, function: Callable[[object], object], argument: object) -> None:
        self._calls.append((function, argument, copy_context()))

    def forget(self) -> None:
        self._calls.clear()

    def another(self) -> Parking:
        return _AsyncioParking(self._loop, self._wakeup)

    def unpark(self) -> bool:
        # A thread's number is used again after its end: a loop that has ended has no thread.
        if threading.get_ident() == self._thread and not self._loop.is_closed():
            self._wake()
            return True
        # Nothing to take: it may be about to park, and has by the time the loop comes to this.
        return self._wakeup.call(self._loop, *(self._take() or (self._wake, None, None)))

    def unpark_at_once(self) -> bool:
        # Asking for the running loop would be a system call.
        if threading.get_ident() != self._thread or not self._loop.is_running():
            return self.unpark()
        if not self._calls and asyncio.current_task(self._loop):
            self._wake()
            return True
        taken = self._take()
        if taken is not None:
            function, argument, context = taken
            context.run(function, argument)
        return True

    def _take(self) -> _Call | None:
        try:
            # Atomic: a task has one step, whoever wakes it.
            return (self._calls or self._steps).pop()
        except IndexError:
            return None

    def _wake(self, _: object = None) -> bool:
        taken = self._take()
        if taken is None:
            return False
        function, argument, context = taken
        self._loop.call_soon(function, argument, context=context)
        return True

    # --- what a task asks of a future that it awaits -----------------------------------------

    def __await__(self) -> Generator[_AsyncioParking, None, None]:
        self._cancelled = None
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, step: Callable[[_AsyncioParking], object], *, context: Context
    ) -> None:
        self._steps.append((cast("Callable[[object], object]", step), self, context))

    def done(self) -> bool:
        return not self._steps

    def cancel(self, msg: object = None) -> bool:
        """Wake the task with ``CancelledError``; False if it has been woken already."""
        self._cancelled = () if msg is None else (msg,)
        if self._wake():
            return True
        self._cancelled = None
        return False

    def result(self) -> None:
        if self._cancelled is not None:
            raise asyncio.CancelledError(*self._cancelled)


class _TrioParking:
    __slots__ = ("_call", "_task", "_thread", "_token")

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._thread = threading.get_ident()
        self._task: trio.lowlevel.Task | None = None
        self._call: _Call | None = None

    async def park(self) -> None:
        import trio

        self._task = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def park_call(self, function: Callable[[object], object], argument: object) -> None:
        self._call = (function, argument, copy_context())

    def forget(self) -> None:
        self._call = None

    def another(self) -> Parking:
        return _TrioParking(self._token)

    def unpark(self) -> bool:
        import trio

        if threading.get_ident() == self._thread and self._call is None:
            self._wake()
            return True
        try:
            self._token.run_sync_soon(self._wake, idempotent=True)
        except trio.RunFinishedError:
            return False
        return True

    def unpark_at_once(self) -> bool:
        import trio

        if threading.get_ident() != self._thread or not trio.lowlevel.in_trio_run():
            return self.unpark()
        self._wake()
        return True

    def _wake(self) -> None:
        import trio

        if self._call is not None:
            (function, argument, context), self._call = self._call, None
            context.run(function, argument)
        elif self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)


def make_parking() -> Parking:
    """A parking place in the running event loop.

    :raises ~anyio.NoEventLoopError: called outside of one.
    """
    token = current_token().native_token
    if isinstance(token, asyncio.AbstractEventLoop):
        return _AsyncioParking(token, wakeup_of(token))
    return _TrioParking(cast("trio.lowlevel.TrioToken", token))
