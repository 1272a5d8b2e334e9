"""TileRT without TileRT: its generators' calls in, what a device would answer out.

The fake keeps the rules that the real device keeps silently: each call in its mode and its order,
each step fed with the token that stands at its position, each draft a copy. Whoever breaks one gets
a ``Misuse``. It computes nothing: what the model says is a function of the index in the answer.

    fake = FakeGenerator(FakeModel(token=lambda index: 100 + index), with_mtp=True)
    engine = TileRTDecode(fake, model=fake.model, with_mtp=True)
    sequence = engine.open(0, fake.kv(tokens=5), 100, Limits(20), Sampling(temperature=0))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tilert_engine.layouts.mla_nsa_cache import ImportedKV
from tilert_engine.layouts.mla_nsa_model import MlaNsaModel
from tilert_engine.tilert.kv import TileRTKV

from .tilert_device import (
    TOKEN_OUT,
    FakeChainLayer,
    FakeDevice,
    FakeModel,
    FakeSequence,
    FakeStepLayer,
    Misuse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_engine.tilert.device import LayerKV

__all__ = ("TOKEN_OUT", "FakeGenerator", "FakeModel", "Misuse")


class FakeGenerator:
    """``GLM5Generator``, or with ``chains=False`` ``DSAv32Generator``.

    :param step_tokens: tokens of a draft.
    :param window: rows of the caches.
    :param layers: layers of the model; with MTP ``inject_cache`` wants one more.
    """

    def __init__(
        self,
        model: FakeModel,
        *,
        with_mtp: bool,
        chains: bool = True,
        step_tokens: int = 4,
        window: int = 256,
        layers: int = 2,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        drafted = step_tokens if with_mtp else 1
        self.device = FakeDevice(model, with_mtp=with_mtp, step_tokens=drafted, window=window)
        self.decode_layer: FakeChainLayer | FakeStepLayer = (
            FakeChainLayer(self.device) if chains else FakeStepLayer(self.device)
        )
        # Real ones differ: GLM-5's says 4 even without MTP.
        self.mtp_seq_len = step_tokens if chains else drafted
        self.model = MlaNsaModel("fake", layers)
        """What its caches are of."""
        self.stop_token_ids = set(stop_token_ids)
        self.samplings: list[tuple[float, float, int, bool]] = []
        """Arguments of each ``update_sampling_params``."""

    def kv(self, *, tokens: int, told: bool = True, draft: bool | None = None) -> TileRTKV:
        """A cache to inject, of a prompt of so many tokens.

        :param told: whether it says the prompt's last token.
        :param draft: whether the draft layer is in it; None: where it is needed.
        """
        layers = self.model.main_layers + (self.device.with_mtp if draft is None else draft)
        ki, kv, pe = (
            torch.zeros(layers, tokens, width, dtype=torch.bfloat16) for width in (128, 512, 64)
        )
        last = self.device.model.last_prompt_token if told else None
        return TileRTKV(ImportedKV(self.model.name, ki, kv, pe), last)

    def inject_cache(self, layer_caches: list[LayerKV], start_pos: int = 0) -> None:
        """Begin a sequence."""
        self.device.touched()
        if self.device.sequence is not None:
            raise Misuse("a cache is injected over a sequence that was not reset")
        needed = self.model.main_layers + self.device.with_mtp
        if len(layer_caches) != needed or start_pos != 0:
            raise Misuse(f"{len(layer_caches)} layers at {start_pos}, not {needed} at 0")
        self.device.sequence = FakeSequence(len(layer_caches[0][0]))

    def set_cur_pos(self, cur_pos: int) -> None:
        """Set the position."""
        self.device.present().position = cur_pos

    def update_sampling_params(
        self, *, temperature: float, top_p: float, top_k: int, use_topp: bool
    ) -> None:
        """Set how tokens are drawn."""
        if self.device.present().steps:
            raise Misuse("sampling changes in the middle of a sequence")
        self.device.greedy = top_k == 1
        self.samplings.append((temperature, top_p, top_k, use_topp))
