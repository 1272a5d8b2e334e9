"""A model of GLM-5's shape with random weights, as deep as a step's time asks for.

In: layers. Out: a checkpoint, whose tokenizer is tiny-glm5's. Widths are about those that one of
eight GPUs holds of GLM-5; the experts are one dense MLP of the width that a token visits.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import torch

from tilert_engine.glm import GLMCheckpoint
from tilert_engine.glm.weights import DraftWeights, GLMWeights, LayerWeights
from tilert_engine.layouts.mla_nsa_cache import CachedKV
from tilert_engine.layouts.mla_nsa_format import new_pages, new_rows, write_pages, write_rows
from tilert_engine.layouts.mla_nsa_model import INDEXER, LATENT, ROPE
from tilert_engine.models.tiny_glm5 import describe_tiny_glm5

__all__ = ("HOST", "random_cache", "random_checkpoint")

HOST: Final = torch.device("cpu")


def random_checkpoint(
    layers: int, *, positions: int, device: torch.device, small: bool = False
) -> GLMCheckpoint:
    """``layers`` main layers and one draft layer, in bfloat16.

    :param small: tiny-glm5's own widths, to try a script on a CPU.
    """
    tiny = describe_tiny_glm5()
    config = replace(tiny.config, num_hidden_layers=layers, max_position_embeddings=positions)
    if not small:
        config = replace(
            config,
            hidden_size=6144,
            intermediate_size=2048,
            num_attention_heads=8,
            q_lora_rank=2048,
            qk_nope_head_dim=192,
            v_head_dim=256,
            index_n_heads=8,
            index_topk=2048,
        )
    generator = torch.Generator(device).manual_seed(7)
    dtype = torch.float32 if small else torch.bfloat16

    def matrix(*shape: int) -> torch.Tensor:
        # Of a row's length: what goes through it keeps its size.
        drawn = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        return (drawn / math.sqrt(shape[-1])).to(dtype)

    def even(size: int, value: float) -> torch.Tensor:
        return torch.full((size,), value, device=device, dtype=dtype)

    hidden, low, heads = config.hidden_size, config.q_lora_rank, config.num_attention_heads
    ranking = config.index_n_heads * INDEXER

    def layer() -> LayerWeights:
        return LayerWeights(
            inward=matrix(low + LATENT + ROPE + INDEXER + config.index_n_heads, hidden),
            queries=matrix(heads * (config.qk_nope_head_dim + ROPE) + ranking, low),
            latent_norm=even(LATENT, LATENT**0.5),
            index_norm=even(INDEXER, 1),
            index_bias=even(INDEXER, 0),
            absorb_key=matrix(heads, config.qk_nope_head_dim, LATENT),
            absorb_value=matrix(heads, LATENT, config.v_head_dim),
            output=matrix(hidden, heads * config.v_head_dim),
            gate_up=matrix(2 * config.intermediate_size, hidden),
            down=matrix(hidden, config.intermediate_size),
        )

    embedding = matrix(config.vocab_size, hidden)
    weights = GLMWeights(
        embedding=embedding,
        layers=tuple(layer() for _ in range(config.cache_layers)),
        head=matrix(config.vocab_size, hidden),
        draft=DraftWeights(project=matrix(hidden, 2 * hidden), head=embedding),
    )
    return GLMCheckpoint(
        name=tiny.name,
        config=config,
        tokenizer=tiny.tokenizer,
        eos_ids=tiny.eos_ids,
        chat_template=tiny.chat_template,
        special_tokens=tiny.special_tokens,
        weights=weights,
    )


def random_cache(checkpoint: GLMCheckpoint, tokens: int) -> CachedKV:
    """A prompt's KV cache on the host, fp8, all layers alike."""
    generator = torch.Generator().manual_seed(tokens)
    latent, rope, key = (
        torch.randn(tokens, width, generator=generator) for width in (LATENT, ROPE, INDEXER)
    )
    layers = checkpoint.config.cache_layers
    rows, pages = new_rows(1, tokens, "fp8_ds_mla", HOST), new_pages(1, tokens, HOST)
    write_rows(rows[0], 0, latent, rope)
    write_pages(pages[0], 0, key)
    return CachedKV(checkpoint.name, rows.repeat(layers, 1, 1), pages.repeat(layers, 1, 1))
