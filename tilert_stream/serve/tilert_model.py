"""A model on TileRT: options and a weights folder in, its decode engine, front and layout out.

TileRT decodes; prompts come from vLLM or another prefill node.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Never

from tilert_engine.chains import DEFAULT_AR_STEPS
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_model import MlaNsaModel, cache_dtype, with_draft
from tilert_stream.errors import ConfigError
from tilert_stream.model.card import ModelCard
from tilert_stream.model.tokenizer import TextTokenizer

from .front import LONGEST, Front

if TYPE_CHECKING:
    from pathlib import Path

    from tilert_engine.tilert import TileRTDecode
    from tilert_stream.config.engine import EngineOptions

__all__ = ("ServedTileRT",)


class ServedTileRT:
    """A ``Model`` that cannot prefill.

    :param weights: the folder that TileRT's weight converter wrote, tokenizer included.
    :raises ~tilert_stream.errors.ConfigError: an option that TileRT cannot follow, or something is
        missing: TileRT itself, its GPUs, the weights.
    """

    def __init__(
        self,
        config: EngineOptions,
        weights: Path | None,
        *,
        slots: int | None,
        ar_steps: int | None,
        senders: int,
    ) -> None:
        for name, value in (("slots", slots), ("senders", senders)):
            if value not in (None, 1):
                raise ConfigError(
                    f"{name} is {value}; it must be 1 with --engine tilert: TileRT holds one"
                    " sequence, and rank 0 alone sends the KV cache of an MLA model",
                    param=name,
                )
        if weights is None:
            raise ConfigError(
                "engine is 'tilert', and model_weights_dir is not given; give the folder that"
                " TileRT's weight converter wrote",
                param="model_weights_dir",
            )
        with_mtp = with_draft(os.environ, flag=config.with_mtp)
        model = MlaNsaModel.of(config.model, draft=with_mtp)
        longest = config.max_seq_len or LONGEST
        self.layout = MlaNsaLayout(
            model=model,
            dtype=cache_dtype(config.kv_cache_dtype),
            max_seq_len=longest,
            device=_import_device(config.device),
        )
        self.decode = _engine(config, model, weights, with_mtp=with_mtp, ar_steps=ar_steps)
        self.front = _front(config, model, weights, self.decode)

    @property
    def prefill(self) -> Never:
        """There is none.

        :raises ~tilert_stream.errors.ConfigError: always.
        """
        raise ConfigError("engine is 'tilert', which computes no prompts", param="engine")


def _engine(
    config: EngineOptions,
    model: MlaNsaModel,
    weights: Path,
    *,
    with_mtp: bool,
    ar_steps: int | None,
) -> TileRTDecode:
    from tilert_engine.tilert import TileRTDecode, ar_steps_from, find_model, load_generator

    steps = ar_steps or ar_steps_from(os.environ, DEFAULT_AR_STEPS)
    loaded = load_generator(find_model(config.model), weights, with_mtp=with_mtp)
    return TileRTDecode(
        loaded.generator,
        model=model,
        with_mtp=with_mtp,
        max_seq_len=config.max_seq_len or LONGEST,
        ar_steps=steps,
        token_out=loaded.token_out,
    )


def _front(config: EngineOptions, model: MlaNsaModel, weights: Path, engine: TileRTDecode) -> Front:
    try:
        tokenizer = TextTokenizer.from_file(weights / "tokenizer.json")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the tokenizer of {model.name} cannot be read: {error}; model_weights_dir needs the"
            " model's tokenizer.json",
            param="model_weights_dir",
        ) from error
    card = ModelCard(
        names=config.served_model_names or (model.name,),
        tokenizer=tokenizer,
        max_seq_len=engine.max_seq_len,
        vocab_size=tokenizer.vocab_size,
        created=int(time.time()),
        eos_ids=engine.stop_ids,
    )
    return Front(card, tokenizer)


def _import_device(name: str) -> str:
    """Where KV caches are dequantised: the first GPU of TileRT's, from which the others copy."""
    if name != "auto":
        return name
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"
