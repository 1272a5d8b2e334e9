"""CUDA memory for landing regions: an option's value in, a device and its memory out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_engine.layouts.abc import DeviceLayout
from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from tilert_engine.layouts.abc import KVLayout

__all__ = ("device_memory", "landing_device")


def landing_device(where: str, engine_device: str, layout: KVLayout) -> str | None:
    """The device in whose memory KV caches land; None: in the host's.

    :param where: ``--landing-memory``.
    :param engine_device: ``--device``.
    :raises ~tilert_stream.errors.ConfigError: there is no CUDA, or the engine is not on it, or
        its layout reads host memory alone.
    """
    if where == "host":
        return None
    import torch

    fix = "leave --landing-memory out"
    if not torch.cuda.is_available():
        raise ConfigError(
            f"landing_memory is {where!r}, and PyTorch {torch.__version__} finds no CUDA device:"
            f" {fix}",
            param="landing_memory",
        )
    device = torch.device("cuda" if engine_device == "auto" else engine_device)
    if device.type != "cuda":
        raise ConfigError(
            f"landing_memory is {where!r}, and the engine is on {engine_device!r}; it must be on"
            f" CUDA: set --device cuda, or {fix}",
            param="landing_memory",
        )
    if not isinstance(layout, DeviceLayout):
        raise ConfigError(
            f"landing_memory is {where!r}, and the model's KV layout {layout.name!r} reads host"
            f" memory alone: {fix}",
            param="landing_memory",
        )
    named = str(device)
    return named if ":" in named else f"{named}:{torch.cuda.current_device()}"


def device_memory(nbytes: int, device: str) -> torch.Tensor:
    """Zeroed memory of its own, uint8 ``[nbytes]``. Blocks until it is there.

    :raises ~tilert_stream.errors.ConfigError: the device has not so much left.
    """
    import torch

    try:
        memory = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the landing regions take {nbytes / 1e9:.1f} GB of {device}, which has not so much"
            " left; lower --regions or --max-seq-len, or leave --landing-memory out",
            param="landing_memory",
        ) from error
    torch.cuda.synchronize(device)
    return memory
