"""What is injected: an imported KV cache in, its layers out, if they fit the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from tilert_engine.layouts.mla_nsa_cache import ImportedKV
from tilert_engine.layouts.mla_nsa_model import INDEXER, LATENT, ROPE
from tilert_stream.errors import EngineFault

if TYPE_CHECKING:
    from tilert_engine.layouts.mla_nsa_model import MlaNsaModel

    from .device import LayerKV

__all__ = ("TileRTKV", "checked_layers", "told_kv")


@dataclass(frozen=True, slots=True, eq=False)
class TileRTKV:
    """An imported cache, and what MTP's opening step is fed with."""

    cache: ImportedKV
    last_prompt_token: int | None
    """The prompt's last token; None where the hand-over has not told it."""


def told_kv(kv: object) -> TileRTKV:
    """``kv`` as this engine takes it: as it is, or an ``ImportedKV`` that nothing was told with.

    :raises ~tilert_stream.errors.EngineFault: it is something else.
    """
    if isinstance(kv, TileRTKV):
        return kv
    if isinstance(kv, ImportedKV):
        return TileRTKV(kv, None)
    raise EngineFault(
        f"the KV cache is a {type(kv).__name__}, TileRT takes what the mla_nsa layout unpacks; hand"
        " over with that layout"
    )


def checked_layers(cache: ImportedKV, model: MlaNsaModel, *, draft: bool) -> list[LayerKV]:
    """The layers of ``cache`` that the device takes.

    :param draft: whether it decodes with the draft layer. Without, one that came along is left out.
    :raises ~tilert_stream.errors.EngineFault: it is another model's, or of another shape or dtype.
    """
    needed = model.main_layers + draft
    tokens, found = cache.seq_len, cache.kv.shape[0]
    if tokens < 1:
        raise EngineFault("the KV cache has 0 tokens; a prompt has at least 1")
    if found not in (needed, model.main_layers + 1):
        raise EngineFault(
            f"the KV cache has {found} layers, {model.name} has {needed}; give both nodes the draft"
            " layer or neither (--with-mtp, --no-mtp)"
        )
    wanted: list[tuple[str, object, object]] = [("model", cache.model, model.name)]
    for name, width in (("ki", INDEXER), ("kv", LATENT), ("pe", ROPE)):
        part = cast("torch.Tensor", getattr(cache, name))
        wanted += [
            (f"shape of {name}", tuple(part.shape), (found, tokens, width)),
            (f"dtype of {name}", part.dtype, torch.bfloat16),
        ]
    for what, got, want in wanted:
        if got != want:
            raise EngineFault(
                f"the KV cache's {what} is {got}, this engine's is {want}; serve the same model on"
                " both nodes, and import it as bfloat16"
            )
    return list(cache.layers())[:needed]
