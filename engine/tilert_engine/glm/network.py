"""The forward pass of a GLM-5-shaped model: token ids and a memory in, hidden states out.

Attention is absorbed: a query is brought into the latent's space and attends to the cached latents
themselves, so that no key or value is ever expanded. Stateless: what a sequence has computed lies
in its ``Memory``. The same code runs a chunk of a prompt, a decode step and a verification.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch.nn import functional as nn

from tilert_engine.layouts.mla_nsa_format import hadamard
from tilert_engine.layouts.mla_nsa_model import LATENT
from tilert_engine.torch.linear import linear
from tilert_engine.torch.places import span

if TYPE_CHECKING:
    from tilert_engine.models.glm_config import GLMConfig
    from tilert_engine.torch.places import Places

    from .memory import Memory
    from .weights import GLMWeights, LayerWeights

__all__ = ("Network",)


class _VectorNorm(Protocol):
    def __call__(self, x: torch.Tensor, /, *, dim: int, keepdim: bool) -> torch.Tensor: ...


class Network:
    """A model's layers, ready for positions 0 … ``positions`` - 1."""

    def __init__(self, config: GLMConfig, weights: GLMWeights, positions: int) -> None:
        self.config = config
        self.weights = weights
        size = config.qk_rope_head_dim
        exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
        places = torch.arange(positions, dtype=torch.float64)
        angles = torch.outer(places, config.rope_theta**-exponents)
        cos, sin = angles.cos(), angles.sin()
        # The sign of "rotate half" is folded into the sine.
        self._cos = torch.cat((cos, cos), -1).unsqueeze(1).to(weights.device, weights.dtype)
        self._sin = torch.cat((-sin, sin), -1).unsqueeze(1).to(weights.device, weights.dtype)
        heads, index_heads = config.num_attention_heads, config.index_n_heads
        # Of each size that is normalised: sqrt(size * eps).
        self._least = {
            size: torch.tensor(
                math.sqrt(size * config.rms_norm_eps), dtype=weights.dtype, device=weights.device
            )
            for size in (config.hidden_size, config.q_lora_rank, LATENT)
        }
        self._inward = [
            config.q_lora_rank,
            LATENT,
            size,
            config.index_head_dim,
            index_heads,
        ]
        self._queries = [
            heads * config.qk_nope_head_dim,
            heads * size,
            index_heads * size,
            index_heads * (config.index_head_dim - size),
        ]

    def hidden(self, ids: torch.Tensor, at: int | Places, memory: Memory) -> torch.Tensor:
        """Run ``ids`` ``[tokens]`` at positions ``at`` …, or at these places; ``[tokens, hidden]``.

        Positions before them must be in ``memory``; those of ``ids`` are written to it.
        """
        places = self._places(at, ids.shape[0])
        x = nn.embedding(ids, self.weights.embedding)
        for index in range(self.config.num_hidden_layers):
            x = self._layer(index, x, places, memory)
        return x

    def draft(
        self, hidden: torch.Tensor, following: torch.Tensor, at: int | Places, memory: Memory
    ) -> torch.Tensor:
        """Run the draft layer, where ``hidden`` runs; its hidden states ``[tokens, hidden]``.

        :param hidden: of the main model or, for a further draft, of the draft layer itself.
        :param following: the token after each position, ``[tokens]``.
        """
        draft = self.weights.draft
        embedded = nn.embedding(following, self.weights.embedding)
        both = torch.cat((self._unit(embedded), self._unit(hidden)), -1)
        places = self._places(at, following.shape[0])
        return self._layer(
            self.config.num_hidden_layers, linear(both, draft.project), places, memory
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores, float32 ``[tokens, vocab]``, of what follows each token."""
        return linear(self._unit(hidden), self.weights.head).float()

    def draft_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores, float32 ``[tokens, vocab]``, of the token after the following one."""
        return linear(self._unit(hidden), self.weights.draft.head).float()

    def _places(self, at: int | Places, tokens: int) -> Places:
        return span(at, tokens, self.weights.device) if isinstance(at, int) else at

    def _unit(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` at unit length: an RMS norm but for a factor that the weights hold.

        The root of the squares and the epsilon is a hypotenuse: three calls, where ``rms_norm``
        makes seven on a CPU.
        """
        least = self._least[x.shape[-1]]
        norm = cast("_VectorNorm", torch.linalg.vector_norm)  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
        return x / norm(x, dim=-1, keepdim=True).hypot(least)

    def _layer(self, index: int, x: torch.Tensor, places: Places, memory: Memory) -> torch.Tensor:
        layer = self.weights.layers[index]
        x = x + self._attend(layer, index, self._unit(x), places, memory)
        gate, up = linear(self._unit(x), layer.gate_up).chunk(2, -1)
        return x + linear(nn.silu(gate) * up, layer.down)

    def _attend(
        self, layer: LayerWeights, index: int, x: torch.Tensor, places: Places, memory: Memory
    ) -> torch.Tensor:
        tokens, rope = x.shape[0], self.config.qk_rope_head_dim
        low, latent, shared, key, shares = torch.split(linear(x, layer.inward), self._inward, -1)
        queries = torch.split(linear(self._unit(low), layer.queries), self._queries, -1)
        plain, turning, index_turning, index_plain = queries
        key = nn.layer_norm(
            key, key.shape[-1:], layer.index_norm, layer.index_bias, self.config.rms_norm_eps
        )
        turned = self._rotate(
            torch.cat((turning, shared, index_turning, key[:, :rope]), -1).view(tokens, -1, rope),
            places,
        )
        heads = self.config.num_attention_heads
        memory.write(
            index,
            places,
            self._unit(latent) * layer.latent_norm,
            turned[:, heads],
            torch.cat((turned[:, -1], key[:, rope:]), -1),
        )
        ranking = torch.cat((turned[:, heads + 1 : -1], index_plain.view(tokens, -1, rope)), -1)
        rows, blocked = self._visible(index, ranking, shares, places, memory)
        plain = plain.view(tokens, heads, -1).transpose(0, 1)
        query = torch.cat(((plain @ layer.absorb_key).transpose(0, 1), turned[:, :heads]), -1)
        scores = query @ rows.transpose(1, 2)
        if blocked is not None:
            scores = scores.masked_fill(blocked.unsqueeze(1), -torch.inf)
        mixed = scores.softmax(-1) @ rows[..., :LATENT]
        values = mixed.transpose(0, 1) @ layer.absorb_value
        return linear(values.transpose(0, 1).reshape(tokens, -1), layer.output)

    def _visible(
        self,
        index: int,
        ranking: torch.Tensor,
        shares: torch.Tensor,
        places: Places,
        memory: Memory,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The rows that attention sees, ``[tokens, n, 576]``, and which of them it must not.

        :param ranking: the indexer's queries, ``[tokens, heads, 128]``.
        :param shares: what each of its heads counts, ``[tokens, heads]``.
        """
        tokens, stop = ranking.shape[0], places.stop
        most, unseen = self.config.index_topk, places.unseen
        rows = memory.rows[index]
        if stop <= most:
            return rows[:stop].expand(tokens, -1, -1), unseen
        matches = (hadamard(ranking) @ memory.keys[index, :stop].t()).relu()
        scores = (shares.unsqueeze(1) @ matches)[:, 0]
        if unseen is not None:
            scores = scores.masked_fill(unseen, -torch.inf)
        best, chosen = scores.topk(most)
        seen = rows.index_select(0, chosen.flatten()).view(tokens, most, -1)
        return seen, best == -torch.inf if places.start < most else None

    def _rotate(self, x: torch.Tensor, places: Places) -> torch.Tensor:
        """Rotate ``[tokens, heads, 64]`` as if at ``places``."""
        half = x.roll(x.shape[-1] // 2, -1)
        return torch.addcmul(x * places.of(self._cos), half, places.of(self._sin))
