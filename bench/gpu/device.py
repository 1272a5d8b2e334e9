"""The GPU: its name in, a line about the machine out; and what it can do without any engine."""

from __future__ import annotations

import platform
import sys
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("T_975", "interval", "need_device", "seconds_of")

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
"""Student's t at 97.5 %, for 1, 2, 3 … degrees of freedom."""


def need_device(name: str) -> torch.device:
    """The device, after a small multiplication on it; ends the process where it is not there."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device; --device cpu shows that the script works")
    square = torch.eye(64, device=device)
    if not torch.equal(square @ square, square):
        sys.exit(f"{device} multiplies wrongly")
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{kind}, torch {torch.__version__}, Python {platform.python_version()}", flush=True)
    return device


def seconds_of(call: object, device: torch.device) -> float:
    """Seconds that ``call`` takes, the device's work included."""
    if not callable(call):
        raise TypeError(f"{call!r} cannot be called")
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % interval."""
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, float("inf")
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    t = T_975[min(count - 1, len(T_975)) - 1]
    return mean, t * (variance / count) ** 0.5
