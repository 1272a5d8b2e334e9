"""One slot's chains: a step and a request in, harvests out; only their reader waits for the device.

::

    enqueue chain ─► copy of its record ─► mark ─┬─► enqueue the next one ─► copy ─► mark
                                                 └─► the owner thread sleeps on the mark, and reads

A chain that is enqueued before the last one has been read keeps the device busy while the host
reads, posts and comes back: where it can be done (``ChainPlanner.ahead``), the host costs nothing.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

import torch

from tilert_stream.errors import EngineFault

from .device_sampler import PLAIN_WAYS
from .sampler import Sampler
from .scores import read_scores
from .slot_state import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from contextlib import AbstractContextManager

    from tilert_engine.accounting import Ledger
    from tilert_engine.chains import ChainPlanner
    from tilert_stream.events import Harvest, Sampling

    from .device_queue import DeviceQueue, Mark
    from .device_sampler import Way
    from .slot_state import SlotState

__all__ = ("LEAST_WINDOW", "Lane", "StepCall", "windows")

LEAST_WINDOW: Final = 512
"""Positions."""
_IN_FLIGHT: Final = 3
"""Chains whose copies can be on their way: one that is read, one that runs, one behind it."""


class StepCall(Protocol):
    """A model's decode step on one slot, in tensors alone."""

    def __call__(self, window: int, way: Way, /) -> None:
        """Take a step.

        :param window: attention reads so many positions.
        """
        ...


class _Host(NamedTuple):
    """Where a chain's copies go."""

    record: torch.Tensor
    scores: torch.Tensor


class _Chain(NamedTuple):
    steps: int
    host: _Host
    mark: Mark


def windows(positions: int, least: int = LEAST_WINDOW) -> tuple[int, ...]:
    """The windows that steps are recorded for: doubling, up to all ``positions``."""
    found = [least]
    while found[-1] < positions:
        found.append(found[-1] * 2)
    return (*found[:-1], positions)


class Lane:
    """The chains of one slot.

    :param positions: the cache's.
    :param reach: positions that a step can write beyond those of its own tokens.
    :param ahead: whether chains are enqueued before the last one has been read.
    """

    def __init__(
        self,
        queue: DeviceQueue,
        state: SlotState,
        step: StepCall,
        planner: ChainPlanner,
        *,
        positions: int,
        reach: int = 0,
        ahead: bool = True,
        least_window: int = LEAST_WINDOW,
    ) -> None:
        self._queue = queue
        self._state = state
        self._step = step
        self._planner = planner
        self._windows = windows(positions, least_window)
        self._reach = reach
        self._ahead = ahead
        self._steps: dict[tuple[int, Way], Callable[[], object]] = {}
        self._hosts = deque(
            _Host(queue.host(state.record), queue.host(state.scores)) for _ in range(_IN_FLIGHT)
        )
        self._flying: deque[_Chain] = deque()

    def prepare(self) -> None:
        """Record the steps that most requests take; on the queue."""
        for way in PLAIN_WAYS:
            self._record(way, self._windows)

    def entered(self) -> AbstractContextManager[object]:
        """Within it, the host takes the slot's steps, behind all that was enqueued."""
        return self._queue.entered()

    @contextmanager
    def importing(self, *sources: torch.Tensor) -> Generator[None]:
        """Within it, the slot's cache is filled from ``sources``, behind all that runs."""
        self._queue.join()
        with self._queue.entered():
            yield
        self._queue.hold(*sources)

    def expect(self, length: int, ledger: Ledger, sampling: Sampling) -> None:
        """Be ready for a sequence with a prompt of ``length`` tokens; on the queue.

        Before its cache is filled: what has to be recorded for it takes steps, which write there.
        """
        # Chains of a sequence that was given up run to their end, and nobody reads them.
        while self._flying:
            self._hosts.append(self._flying.popleft().host)
        self._length = length
        self._sampler = Sampler(sampling)
        self._numbered = 0
        self._way = self._state.sampler.way(sampling)
        longest = length + ledger.limits.max_tokens + self._state.step_tokens + self._reach
        first, last = self._window(length), self._window(longest)
        self._record(self._way, [window for window in self._windows if first <= window <= last])

    def begin(self, first_token: int, ledger: Ledger, sampling: Sampling) -> None:
        """Start the expected sequence, whose prompt is in the cache; on the queue."""
        self._state.begin(self._length, first_token, ledger.limits, sampling)

    def _record(self, way: Way, windows: Iterable[int]) -> None:
        for window in windows:
            if (window, way) not in self._steps:
                # Recording takes steps, which move whatever the slot holds.
                self._state.reset()
                self._steps[window, way] = self._queue.recorded(partial(self._step, window, way))

    def harvest(self, ledger: Ledger) -> Harvest:
        """Wait for the next chain, and book it.

        :raises ~tilert_stream.errors.EngineFault: the logits are not finite.
        """
        with self._queue.entered():
            if not self._flying:
                self._enqueue(self._planner.length(ledger.remaining), ledger)
            if self._ahead and (steps := self._behind(ledger)):
                self._enqueue(steps, ledger)
        chain = self._flying.popleft()
        chain.mark.synchronize()
        self._hosts.append(chain.host)
        rows = cast("list[list[float]]", chain.host.record[: chain.steps].tolist())  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
        return self._book([Step(row) for row in rows], chain.host.scores, ledger)

    @property
    def _running(self) -> int:
        return sum(chain.steps for chain in self._flying)

    def _behind(self, ledger: Ledger) -> int:
        limits, running = ledger.limits, self._running
        reached = ledger.emitted + running * self._state.step_tokens
        may_stop = bool(limits.eos_ids or limits.stop_ids) and reached >= limits.min_tokens
        return self._planner.ahead(ledger.remaining, running, may_stop=may_stop)

    def _enqueue(self, steps: int, ledger: Ledger) -> None:
        state = self._state
        furthest = ledger.emitted + (self._running + steps) * state.step_tokens
        if not self._sampler.greedy:
            # Those of the drafts after the last step's tokens, too.
            last = min(furthest + state.step_tokens, state.sampler.size)
            if last > self._numbered:
                state.sampler.number(self._sampler, self._numbered, last)
                self._numbered = last
        step = self._steps[self._window(self._length + furthest - 1 + self._reach), self._way]
        state.begin_chain()
        for _ in range(steps):
            step()
        host = self._hosts.popleft()
        host.record[:steps].copy_(state.record[:steps], non_blocking=True)
        if self._way.scores:
            host.scores[:steps].copy_(state.scores[:steps], non_blocking=True)
        self._flying.append(_Chain(steps, host, self._queue.mark()))

    def _book(self, steps: list[Step], scores: torch.Tensor, ledger: Ledger) -> Harvest:
        counted = [step for step in steps if step.ids]
        ids = [token for step in counted for token in step.ids]
        peaks = [peak for step in counted for peak in step.peaks]
        if any(step.over for step in steps):
            ledger.overran(len(steps) - len(counted) + self._running)
        logprobs = None
        if self._sampler.logprobs is not None:
            # Steps that count come first.
            kept = [row[: len(step.ids)] for row, step in zip(scores, counted, strict=False)]
            rows = torch.cat(kept) if kept else scores[0, :0]
            logprobs = read_scores(rows, ids, self._sampler.logprobs)
        harvest = ledger.take(ids, [len(step.ids) for step in counted], logprobs)
        consumed = peaks[: len(harvest.batch.ids)]
        if not all(math.isfinite(peak) for peak in consumed):
            raise EngineFault(
                f"the highest logits are {consumed}, not all finite: the weights or the dtype "
                "overflow; try another dtype"
            )
        return harvest

    def _window(self, positions: int) -> int:
        fitting = (window for window in self._windows if window >= positions)
        return next(fitting, self._windows[-1])
