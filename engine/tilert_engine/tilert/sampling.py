"""A request's sampling in, TileRT's out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tilert_stream.errors import EngineFault

if TYPE_CHECKING:
    from tilert_stream.events import Sampling

__all__ = ("DeviceSampling", "device_sampling")

_GREEDY_BELOW: Final = 1e-5
"""As TileRT and vLLM have it: what is colder is greedy."""
_WIDEST: Final = 256
"""The most candidates that TileRT's kernel sorts: an unlimited or larger ``top_k`` becomes this."""


class DeviceSampling(NamedTuple):
    """Arguments of ``update_sampling_params``, in its order."""

    temperature: float
    top_p: float
    top_k: int
    use_topp: bool


def device_sampling(sampling: Sampling) -> DeviceSampling:
    """What the device is told.

    :raises ~tilert_stream.errors.EngineFault: the request asks for what TileRT does not have.
    """
    if sampling.min_p > 0:
        raise EngineFault(
            f"min_p is {sampling.min_p}; TileRT has no min_p. Leave it out, or decode on another"
            " engine",
            param="min_p",
        )
    if sampling.temperature < _GREEDY_BELOW:
        return DeviceSampling(temperature=1.0, top_p=1.0, top_k=1, use_topp=False)
    widest = min(sampling.top_k, _WIDEST) if sampling.top_k > 0 else _WIDEST
    return DeviceSampling(sampling.temperature, sampling.top_p, widest, use_topp=True)
