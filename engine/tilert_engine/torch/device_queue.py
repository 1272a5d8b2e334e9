"""Where a decode engine's work is enqueued: calls in, done in order, and marks to wait for.

On CUDA it is a stream of the engine's own, so that a prefill on the same device neither waits for
chains nor holds them up, and a call is recorded once as a CUDA graph and replayed. On a CPU a call
is simply made.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Protocol, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ("WARMING", "DeviceQueue", "Mark")

WARMING: Final = 2
"""Calls before one is recorded: libraries set themselves up in the first."""


class Mark(Protocol):
    """A point in a queue."""

    def synchronize(self) -> None:
        """Wait until all before it is done."""
        ...


class _Passed:
    def synchronize(self) -> None:
        """On a CPU all is done when its call returns."""


class DeviceQueue:
    """A queue on ``device``.

    :param graphs: whether calls are recorded and replayed; only CUDA can.
    """

    def __init__(self, device: torch.device, *, graphs: bool) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch
        self._graphs = graphs and self._stream is not None
        self._pool = torch.cuda.graph_pool_handle() if self._graphs else None

    def entered(self) -> AbstractContextManager[object]:
        """Within it, torch's calls go to this queue."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def join(self) -> None:
        """Let what is enqueued from now on see what the thread's own stream has been given."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def hold(self, *tensors: torch.Tensor) -> None:
        """Keep memory of other streams until what is enqueued has read it."""
        if self._stream is not None:
            for tensor in tensors:
                if tensor.is_cuda:
                    tensor.record_stream(self._stream)

    def recorded(self, call: Callable[[], object]) -> Callable[[], object]:
        """What enqueues ``call`` again and again: its recording, or itself.

        ``call`` must read nothing back, and use the same tensors each time; it is made a few times.
        """
        stream = self._stream
        if not self._graphs or stream is None:
            return call
        with torch.cuda.stream(stream):
            for _ in range(WARMING):
                call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: a prefill on another thread may go on while this one records.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
        ):
            call()
        return cast("Callable[[], object]", graph.replay)

    def host(self, like: torch.Tensor) -> torch.Tensor:
        """Memory on the host that ``like`` can be copied to without anybody waiting."""
        return torch.empty_like(like, device="cpu", pin_memory=self._stream is not None)

    def mark(self) -> Mark:
        """This point. Who waits for it sleeps, without holding the interpreter's lock."""
        if self._stream is None:
            return _Passed()
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch
        event.record(self._stream)
        return event
