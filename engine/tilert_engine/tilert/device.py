"""TileRT's objects, as far as this engine calls them. Names and shapes are TileRT's own.

A generator holds one sequence: ``inject_cache`` and ``set_cur_pos`` bring it to where prefill was,
its ``decode_layer`` takes the steps, ``reset_sequence`` forgets it. What a layer can do differs:
GLM-5's chains steps on the device, DeepSeek-V3.2's takes one at a time and has no chains to ask
for, and neither offers more than its model was loaded with.

``T`` is the generator's ``mtp_seq_len``, the tokens of a draft: 4 with MTP. Tensors of ids are
int32. Positions count from 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = (
    "DecodeLayer",
    "Generator",
    "LayerKV",
    "MTPChainLayer",
    "MTPStepLayer",
    "PlainChainLayer",
    "PlainStepLayer",
)

LayerKV: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"
"""One layer's cache, bf16: indexer keys [seq, 128], latents [seq, 512], rope keys [seq, 64]."""


class Generator(Protocol):
    """``GLM5Generator`` or ``DSAv32Generator``, its weights loaded.

    Where it has them, ``mtp_seq_len``, ``config.max_seq_len``, ``stop_token_ids`` or ``eos_id`` are
    read as well.
    """

    @property
    def decode_layer(self) -> DecodeLayer:
        """What takes the steps."""
        ...

    def inject_cache(self, layer_caches: list[LayerKV], start_pos: int = 0) -> None:
        """Copy every layer's cache to positions ``start_pos`` and on, on all GPUs."""
        ...

    def set_cur_pos(self, cur_pos: int) -> None:
        """Set the position of the prompt's last token."""
        ...

    def update_sampling_params(
        self, *, temperature: float, top_p: float, top_k: int, use_topp: bool
    ) -> None:
        """Set how tokens are drawn. Costs a new recording of the CUDA graphs."""
        ...


@runtime_checkable
class DecodeLayer(Protocol):
    """What every layer can do."""

    def reset_sequence(self) -> None:
        """Forget the sequence."""
        ...


@runtime_checkable
class MTPChainLayer(DecodeLayer, Protocol):
    """Chains of MTP steps (GLM-5)."""

    def set_prefill_valid_tokens(self, num_valid_tokens: int) -> None:
        """0 selects decode; chains and their buffers exist only in it."""
        ...

    def show_hands(self, prev_draft_tokens: torch.Tensor, ar_steps: int) -> None:
        """Take ``ar_steps`` steps, the first on the draft [1, T]; returns when they are done."""
        ...

    def ar_accepted_tokens(self, dev: int) -> torch.Tensor:
        """The chain's ids: how many, then they. On the device."""
        ...

    def ar_num_accepted(self, dev: int) -> torch.Tensor:
        """The chain's steps: how many, then the accepted length of each. On the device."""
        ...

    def get_next_draft_tokens(self, device_id: int) -> torch.Tensor:
        """The draft [1, T] of the next step: the live buffer, which that step overwrites."""
        ...


@runtime_checkable
class PlainChainLayer(DecodeLayer, Protocol):
    """Chains of steps without MTP (GLM-5)."""

    def set_prefill_valid_tokens(self, num_valid_tokens: int, *, with_mtp: bool) -> None:
        """As ``MTPChainLayer``; ``with_mtp=False`` selects this loop."""
        ...

    def show_hands_no_mtp(self, prev_token: torch.Tensor, ar_steps: int) -> None:
        """Take ``ar_steps`` steps, the first on the token [1]; returns when they are done."""
        ...

    def ar_accepted_tokens_no_mtp(self, dev: int) -> torch.Tensor:
        """The chain's ids: how many, then they. On the device."""
        ...


@runtime_checkable
class MTPStepLayer(DecodeLayer, Protocol):
    """MTP, one step at a time (DeepSeek-V3.2)."""

    def set_prefill_valid_tokens(self, num_valid_tokens: int) -> None:
        """0 selects decode."""
        ...

    def forward(self, token_id: torch.Tensor) -> object:
        """Take one step on the draft [1, T]."""
        ...

    def get_num_accepted(self, device_id: int) -> int:
        """The last step's accepted length."""
        ...

    def get_predicted_tokens(self, device_id: int) -> torch.Tensor:
        """The last step's ids; only so many as were accepted mean something. On the device."""
        ...

    def get_next_draft_tokens(self, device_id: int) -> torch.Tensor:
        """As ``MTPChainLayer``."""
        ...


@runtime_checkable
class PlainStepLayer(DecodeLayer, Protocol):
    """Without MTP, one step at a time (DeepSeek-V3.2)."""

    def forward(self, token_id: torch.Tensor) -> Sequence[Sequence[Sequence[torch.Tensor]]]:
        """Take one step on the token, a scalar.

        Returns per GPU its tensors by kind; those of the first kind, the intermediates, hold the
        new token [1, 1] at TileRT's ``Idx.TOKEN_OUT``.
        """
        ...
