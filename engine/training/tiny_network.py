"""GLM-5's network for training: token ids in, losses out; every matrix by its checkpoint name.

Attention is computed in full over ``[tokens, tokens]`` scores, without a cache and unabsorbed: the
engine's way of computing the same function shares no code with this one.

* Multi-head latent attention: keys and values of all heads are expanded from one latent vector of
  512 and one rotated key of 64 a token.
* Lightning indexer: ``sum_h w_h * relu(q_h . k)`` ranks the earlier tokens; attention sees the
  ``index_topk`` best. It is trained by the divergence between its own softmax and the attention it
  stands in for, as DeepSeek-V3.2's technical report describes; nothing else reaches its weights.
* Draft layer (multi-token prediction): from the hidden state at a token and the embedding of the
  next one it predicts the token after that; then once more from its own hidden state, as it will be
  used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.nn import functional as nn

__all__ = ("Network", "Outcome", "Shape", "initial")

Parameters: TypeAlias = "dict[str, torch.Tensor]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Dimensions; names are those of the checkpoint's ``config.json``."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 896
    num_hidden_layers: int = 4
    num_nextn_predict_layers: int = 1
    num_attention_heads: int = 4
    q_lora_rank: int = 128
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 64
    qk_rope_head_dim: int = 64
    v_head_dim: int = 64
    index_n_heads: int = 4
    index_head_dim: int = 128
    index_topk: int = 64
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048


def initial(shape: Shape, *, device: torch.device, seed: int) -> Parameters:
    """Freshly drawn parameters, float32, by name."""
    draw = torch.Generator(device="cpu").manual_seed(seed)
    out: Parameters = {}

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        value = torch.randn(rows, columns, generator=draw) * (scale / math.sqrt(columns))
        out[name] = value.to(device).requires_grad_()

    def ones(name: str, size: int) -> None:
        out[name] = torch.ones(size, device=device).requires_grad_()

    hidden, heads = shape.hidden_size, shape.num_attention_heads
    matrix("model.embed_tokens.weight", shape.vocab_size, hidden, 0.5)
    layers = shape.num_hidden_layers + shape.num_nextn_predict_layers
    depth = 1 / math.sqrt(2 * layers)
    for index in range(layers):
        prefix = f"model.layers.{index}"
        attention = f"{prefix}.self_attn"
        ones(f"{prefix}.input_layernorm.weight", hidden)
        ones(f"{prefix}.post_attention_layernorm.weight", hidden)
        matrix(f"{attention}.q_a_proj.weight", shape.q_lora_rank, hidden)
        ones(f"{attention}.q_a_layernorm.weight", shape.q_lora_rank)
        head = shape.qk_nope_head_dim + shape.qk_rope_head_dim
        matrix(f"{attention}.q_b_proj.weight", heads * head, shape.q_lora_rank)
        latent = shape.kv_lora_rank
        matrix(f"{attention}.kv_a_proj_with_mqa.weight", latent + shape.qk_rope_head_dim, hidden)
        ones(f"{attention}.kv_a_layernorm.weight", latent)
        both = heads * (shape.qk_nope_head_dim + shape.v_head_dim)
        matrix(f"{attention}.kv_b_proj.weight", both, latent)
        matrix(f"{attention}.o_proj.weight", hidden, heads * shape.v_head_dim, depth)
        indexer = f"{attention}.indexer"
        rows = shape.index_n_heads * shape.index_head_dim
        matrix(f"{indexer}.wq_b.weight", rows, shape.q_lora_rank)
        matrix(f"{indexer}.wk.weight", shape.index_head_dim, hidden)
        ones(f"{indexer}.k_norm.weight", shape.index_head_dim)
        bias = torch.zeros(shape.index_head_dim, device=device)
        out[f"{indexer}.k_norm.bias"] = bias.requires_grad_()
        matrix(f"{indexer}.weights_proj.weight", shape.index_n_heads, hidden)
        matrix(f"{prefix}.mlp.gate_proj.weight", shape.intermediate_size, hidden)
        matrix(f"{prefix}.mlp.up_proj.weight", shape.intermediate_size, hidden)
        matrix(f"{prefix}.mlp.down_proj.weight", hidden, shape.intermediate_size, depth)
    ones("model.norm.weight", hidden)
    draft = f"model.layers.{shape.num_hidden_layers}"
    ones(f"{draft}.enorm.weight", hidden)
    ones(f"{draft}.hnorm.weight", hidden)
    matrix(f"{draft}.eh_proj.weight", hidden, 2 * hidden)
    ones(f"{draft}.shared_head.norm.weight", hidden)
    return out


@dataclass(frozen=True, slots=True)
class Outcome:
    """Losses of one batch, each a scalar: nats a token."""

    main: torch.Tensor
    draft: tuple[torch.Tensor, torch.Tensor]
    """Of the first and the second token drafted."""
    indexer: torch.Tensor
    agreement: tuple[torch.Tensor, torch.Tensor]
    """Share of drafts that are the main model's own choice."""


class Network:
    """The function of ``parameters``."""

    def __init__(self, shape: Shape, parameters: Parameters) -> None:
        self.shape = shape
        self.parameters = parameters
        self._divergence: list[torch.Tensor] = []

    def losses(self, ids: torch.Tensor, *, sparse: bool) -> Outcome:
        """Of ``ids``, int64 ``[batch, tokens + 3]``.

        :param sparse: attention sees only what the indexer chose.
        """
        self._divergence = []
        embedding = self.parameters["model.embed_tokens.weight"]
        embedded = nn.embedding(ids, embedding)
        tokens = ids.shape[1] - 3
        hidden = embedded[:, :tokens]
        for index in range(self.shape.num_hidden_layers):
            hidden = self._layer(index, hidden, 0, sparse=sparse)
        main = self._logits(hidden, "model.norm.weight")
        drafted: list[torch.Tensor] = []
        state = hidden
        for step in (1, 2):
            state = self._draft(state, embedded[:, step : step + tokens], step - 1, sparse=sparse)
            name = f"model.layers.{self.shape.num_hidden_layers}.shared_head.norm.weight"
            drafted.append(self._logits(state, name))
        choice = main.argmax(-1)
        first, second = (
            (drafted[step - 1][:, : tokens - step].argmax(-1) == choice[:, step:]).float().mean()
            for step in (1, 2)
        )
        return Outcome(
            _entropy(main, ids[:, 1 : tokens + 1]),
            (
                _entropy(drafted[0], ids[:, 2 : tokens + 2]),
                _entropy(drafted[1], ids[:, 3 : tokens + 3]),
            ),
            torch.stack(self._divergence).mean(),
            (first, second),
        )

    def _logits(self, hidden: torch.Tensor, norm: str) -> torch.Tensor:
        return nn.linear(self._norm(hidden, norm), self.parameters["model.embed_tokens.weight"])

    def _draft(
        self, hidden: torch.Tensor, following: torch.Tensor, start: int, *, sparse: bool
    ) -> torch.Tensor:
        index = self.shape.num_hidden_layers
        prefix = f"model.layers.{index}"
        both = torch.cat(
            (
                self._norm(following, f"{prefix}.enorm.weight"),
                self._norm(hidden, f"{prefix}.hnorm.weight"),
            ),
            -1,
        )
        x = nn.linear(both, self.parameters[f"{prefix}.eh_proj.weight"])
        return self._layer(index, x, start, sparse=sparse)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.parameters[name]
        return nn.rms_norm(x.float(), weight.shape, weight, self.shape.rms_norm_eps)

    def _layer(self, index: int, x: torch.Tensor, start: int, *, sparse: bool) -> torch.Tensor:
        prefix = f"model.layers.{index}"
        normed = self._norm(x, f"{prefix}.input_layernorm.weight")
        x = x + self._attend(f"{prefix}.self_attn", normed, start, sparse=sparse)
        normed = self._norm(x, f"{prefix}.post_attention_layernorm.weight")
        gate = nn.linear(normed, self.parameters[f"{prefix}.mlp.gate_proj.weight"])
        up = nn.linear(normed, self.parameters[f"{prefix}.mlp.up_proj.weight"])
        down = self.parameters[f"{prefix}.mlp.down_proj.weight"]
        return x + nn.linear(nn.silu(gate) * up, down)

    def _attend(self, prefix: str, x: torch.Tensor, start: int, *, sparse: bool) -> torch.Tensor:
        shape, weights = self.shape, self.parameters
        batch, tokens, _ = x.shape
        nope, rope, value = shape.qk_nope_head_dim, shape.qk_rope_head_dim, shape.v_head_dim
        low = self._norm(
            nn.linear(x, weights[f"{prefix}.q_a_proj.weight"]), f"{prefix}.q_a_layernorm.weight"
        )
        queries = nn.linear(low, weights[f"{prefix}.q_b_proj.weight"])
        queries = queries.view(batch, tokens, -1, nope + rope).transpose(1, 2)
        latent = nn.linear(x, weights[f"{prefix}.kv_a_proj_with_mqa.weight"])
        latent, shared = torch.split(latent, [shape.kv_lora_rank, rope], -1)
        latent = self._norm(latent, f"{prefix}.kv_a_layernorm.weight")
        expanded = nn.linear(latent, weights[f"{prefix}.kv_b_proj.weight"])
        expanded = expanded.view(batch, tokens, -1, nope + value).transpose(1, 2)
        keys, values = torch.split(expanded, [nope, value], -1)
        scores = queries[..., :nope] @ keys.transpose(-1, -2)
        turned = self._rotate(queries[..., nope:], start)
        scores = scores + turned @ self._rotate(shared.unsqueeze(1), start).transpose(-1, -2)
        scores = scores.float() / math.sqrt(nope + rope)
        ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        ranking = self._rank(f"{prefix}.indexer", x.detach(), low.detach(), start)
        ranking = ranking.masked_fill(ahead, -torch.inf)
        hidden = ahead
        if sparse and tokens > shape.index_topk:
            least = ranking.detach().topk(shape.index_topk).values[..., -1:]
            hidden = ahead | (ranking.detach() < least).unsqueeze(1)
        seen = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        self._learn(seen.detach().mean(1), ranking)
        mixed = (seen.to(values.dtype) @ values).transpose(1, 2).reshape(batch, tokens, -1)
        return nn.linear(mixed, weights[f"{prefix}.o_proj.weight"])

    def _rank(self, prefix: str, x: torch.Tensor, low: torch.Tensor, start: int) -> torch.Tensor:
        shape, weights = self.shape, self.parameters
        batch, tokens, _ = x.shape
        queries = nn.linear(low, weights[f"{prefix}.wq_b.weight"])
        queries = queries.view(batch, tokens, shape.index_n_heads, -1).transpose(1, 2)
        keys = nn.layer_norm(
            nn.linear(x, weights[f"{prefix}.wk.weight"]).float(),
            (shape.index_head_dim,),
            weights[f"{prefix}.k_norm.weight"],
            weights[f"{prefix}.k_norm.bias"],
            shape.rms_norm_eps,
        ).unsqueeze(1)
        rope = shape.qk_rope_head_dim
        queries, keys = (
            torch.cat((self._rotate(part[..., :rope], start), part[..., rope:].float()), -1)
            for part in (queries, keys)
        )
        heads = nn.linear(x, weights[f"{prefix}.weights_proj.weight"]).transpose(1, 2)
        scale = (shape.index_n_heads * shape.index_head_dim) ** -0.5
        matches = (queries @ keys.transpose(-1, -2)).relu()
        weighed: torch.Tensor = (matches * heads.unsqueeze(-1)).sum(1)
        return weighed.float().mul(scale)

    def _learn(self, attention: torch.Tensor, ranking: torch.Tensor) -> None:
        chosen = ranking.log_softmax(-1).masked_fill(attention == 0, 0)
        wanted = attention.clamp(min=1e-9).log()
        self._divergence.append((attention * (wanted - chosen)).sum(-1).mean())

    def _rotate(self, x: torch.Tensor, start: int) -> torch.Tensor:
        size = self.shape.qk_rope_head_dim
        powers = torch.arange(0, size, 2, device=x.device, dtype=torch.float64) / size
        places = torch.arange(start, start + x.shape[-2], device=x.device, dtype=torch.float64)
        angles = torch.outer(places, self.shape.rope_theta**-powers)
        cos, sin = angles.cos().float(), angles.sin().float()
        left, right = x.float().chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def _entropy(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())
