"""The model once more, from its checkpoint's tensors, in float64: no cache, no fused matrices.

Keys and values are expanded for every head, the norms are written out, and what attention sees is
a mask. It shares nothing with the engine but the file.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import (
    load_file,  # pyright: ignore[reportUnknownVariableType] -- its paths are
)


class Reference:
    def __init__(self, path: Path) -> None:
        self.config: dict[str, float] = json.loads((path / "config.json").read_text())
        self._tensors = {
            name: tensor.double() for name, tensor in load_file(path / "model.safetensors").items()
        }

    def hidden(self, ids: list[int]) -> torch.Tensor:
        x = self._tensors["model.embed_tokens.weight"][torch.tensor(ids)]
        for layer in range(self._size("num_hidden_layers")):
            x = self._layer(layer, x)
        return x

    def logits(self, ids: list[int]) -> torch.Tensor:
        head = self._tensors["model.embed_tokens.weight"]
        return self._norm(self.hidden(ids), "model.norm.weight") @ head.T

    def drafted(self, ids: list[int], first: int) -> torch.Tensor:
        """Logits of what follows each of ``ids`` and the token after it."""
        layer = self._size("num_hidden_layers")
        prefix = f"model.layers.{layer}"
        head = self._tensors["model.embed_tokens.weight"]
        following = head[torch.tensor([*ids[1:], first])]
        both = torch.cat(
            (
                self._norm(following, f"{prefix}.enorm.weight"),
                self._norm(self.hidden(ids), f"{prefix}.hnorm.weight"),
            ),
            -1,
        )
        x = self._layer(layer, both @ self._tensors[f"{prefix}.eh_proj.weight"].T)
        return self._norm(x, f"{prefix}.shared_head.norm.weight") @ head.T

    def _size(self, name: str) -> int:
        return int(self.config[name])

    def _times(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self._tensors[name].T

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        mean = x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]
        return x / mean.sqrt() * self._tensors[name]

    def _layer(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        prefix = f"model.layers.{layer}"
        x = x + self._attention(
            f"{prefix}.self_attn", self._norm(x, f"{prefix}.input_layernorm.weight")
        )
        normed = self._norm(x, f"{prefix}.post_attention_layernorm.weight")
        gate = self._times(normed, f"{prefix}.mlp.gate_proj.weight")
        up = self._times(normed, f"{prefix}.mlp.up_proj.weight")
        return x + self._times(gate * gate.sigmoid() * up, f"{prefix}.mlp.down_proj.weight")

    def _attention(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        tokens, heads = len(x), self._size("num_attention_heads")
        nope, rope = self._size("qk_nope_head_dim"), self._size("qk_rope_head_dim")
        low = self._norm(
            self._times(x, f"{prefix}.q_a_proj.weight"), f"{prefix}.q_a_layernorm.weight"
        )
        queries = self._times(low, f"{prefix}.q_b_proj.weight").view(tokens, heads, nope + rope)
        compressed = self._times(x, f"{prefix}.kv_a_proj_with_mqa.weight")
        latent = self._norm(compressed[:, :-rope], f"{prefix}.kv_a_layernorm.weight")
        expanded = self._times(latent, f"{prefix}.kv_b_proj.weight").view(tokens, heads, -1)
        shared = self._turn(compressed[:, None, -rope:])
        scores = torch.einsum("qhd,khd->hqk", queries[..., :nope], expanded[..., :nope])
        turned = self._turn(queries[..., nope:])
        scores = scores + torch.einsum("qhd,kd->hqk", turned, shared[:, 0])
        scores = scores / (nope + rope) ** 0.5
        seen = self._chosen(f"{prefix}.indexer", x, low)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, expanded[..., nope:]).reshape(tokens, -1)
        return self._times(mixed, f"{prefix}.o_proj.weight")

    def _chosen(self, prefix: str, x: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        tokens, heads = len(x), self._size("index_n_heads")
        rope = self._size("qk_rope_head_dim")
        queries = self._times(low, f"{prefix}.wq_b.weight").view(tokens, heads, -1)
        keys = self._times(x, f"{prefix}.wk.weight")
        centred = keys - keys.mean(-1, keepdim=True)
        spread = centred.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]
        keys = centred / spread.sqrt() * self._tensors[f"{prefix}.k_norm.weight"]
        keys = keys + self._tensors[f"{prefix}.k_norm.bias"]
        queries = torch.cat((self._turn(queries[..., :rope]), queries[..., rope:]), -1)
        turned = self._turn(keys[:, None, :rope])[:, 0]
        keys = torch.cat((turned, keys[:, rope:]), -1)
        shares = self._times(x, f"{prefix}.weights_proj.weight")
        matches = torch.einsum("qhd,kd->hqk", queries, keys).clamp(min=0)
        scores = torch.einsum("hqk,qh->qk", matches, shares)
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
        best = torch.zeros_like(seen)
        best.scatter_(1, scores.topk(min(tokens, self._size("index_topk"))).indices, value=True)
        return seen & best

    def _turn(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate ``[tokens, heads, 64]`` as complex numbers: first half real, second imaginary."""
        half = x.shape[-1] // 2
        frequencies = self.config["rope_theta"] ** (-torch.arange(half).double() / half)
        angles = torch.arange(len(x)).double()[:, None, None] * frequencies
        spun = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.cat((spun.real, spun.imag), -1)
