"""What a landed KV cache must offer to be injected, and the check that it fits the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from tilert_stream.errors import EngineFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .device import LayerKV

__all__ = ("UnpackedKV", "checked_layers", "last_prompt_token")

_WIDTHS: Final = (("ki", 128), ("kv", 512), ("pe", 64))
"""Numbers a token of each part of ``LayerKV``, the same in all models that TileRT decodes."""


@runtime_checkable
class UnpackedKV(Protocol):
    """What the ``mla_nsa`` layout unpacks; ``last_prompt_token`` is read where it has one."""

    @property
    def layers(self) -> Sequence[LayerKV]:
        """Each layer's cache, the draft layer last where there is one."""
        ...


def checked_layers(kv: object, count: int) -> list[LayerKV]:
    """The layers of ``kv``.

    :param count: layers that the model has.
    :raises ~tilert_stream.errors.EngineFault: it is something else, or of another shape.
    """
    if not isinstance(kv, UnpackedKV):
        raise EngineFault(
            f"the KV cache is a {type(kv).__name__}, TileRT takes what the mla_nsa layout unpacks;"
            " hand over with that layout"
        )
    layers = list(kv.layers)
    if len(layers) != count:
        raise EngineFault(
            f"the KV cache has {len(layers)} layers, the model {count}; give both nodes the draft"
            " layer or neither (--with-mtp, --no-mtp)"
        )
    tokens = len(layers[0][0])
    if tokens < 1:
        raise EngineFault("the KV cache has 0 tokens; a prompt has at least 1")
    for number, layer in enumerate(layers):
        for (name, width), part in zip(_WIDTHS, layer, strict=True):
            if tuple(part.shape) != (tokens, width):
                raise EngineFault(
                    f"layer {number} of the KV cache has a {name} of shape {tuple(part.shape)},"
                    f" needed is {(tokens, width)}; serve the same model on both nodes"
                )
    return layers


def last_prompt_token(kv: object) -> int | None:
    """The prompt's last token, where the hand-over has told it."""
    token = getattr(kv, "last_prompt_token", None)
    return token if isinstance(token, int) else None
