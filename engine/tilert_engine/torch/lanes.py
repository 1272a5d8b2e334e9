"""A lane for each slot of an engine: who takes the steps of a chain, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .device_queue import DeviceQueue
from .lane import LEAST_WINDOW, Lane
from .slot_state import SlotState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_engine.chains import ChainPlanner

    from .lane import StepCall

__all__ = ("ChainOptions", "make_lanes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """How an engine takes the steps of a chain. The defaults are what is fastest."""

    on_device: bool | None = None
    """Whether the device takes them by itself; None: on CUDA, where a read would cost time."""
    graphs: bool = True
    """Whether a step is recorded as a CUDA graph and replayed; only CUDA can."""
    ahead: bool = True
    """Whether a chain is enqueued before the last one has been read."""
    early: bool = True
    """Whether steps are recorded when the engine is made, and not by the first request that needs
    one: seconds for a small model, a minute for a large one with many slots."""
    least_window: int = LEAST_WINDOW
    """Positions that attention reads at least; steps are recorded for this and its doubles."""


def make_lanes(
    options: ChainOptions,
    make_step: Callable[[int, SlotState], StepCall],
    planner: ChainPlanner,
    *,
    device: torch.device,
    slots: int,
    vocab: int,
    max_seq_len: int,
    positions: int,
    reach: int = 0,
) -> tuple[Lane, ...]:
    """A lane for each slot; none where the host is to take the steps.

    :param make_step: gives the step of a slot, on that slot's state.
    :param positions: of a slot's cache.
    :param reach: positions that a step can write beyond those of its own tokens.
    """
    if not (device.type == "cuda" if options.on_device is None else options.on_device):
        return ()
    queue = DeviceQueue(device, graphs=options.graphs)
    queue.join()
    lanes: list[Lane] = []
    with torch.inference_mode(), queue.entered():
        for slot in range(slots):
            state = SlotState(
                vocab,
                step_tokens=planner.step_tokens,
                max_seq_len=max_seq_len,
                ar_steps=planner.ar_steps,
                device=device,
            )
            lane = Lane(
                queue,
                state,
                make_step(slot, state),
                planner,
                positions=positions,
                reach=reach,
                ahead=options.ahead,
                least_window=options.least_window,
            )
            if options.early:
                lane.prepare()
            lanes.append(lane)
    return tuple(lanes)
