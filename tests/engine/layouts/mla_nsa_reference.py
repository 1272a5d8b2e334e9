"""The formats once more, by their definitions: numpy in float64, nothing shared with the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]

LATENT_BYTES = {"fp8_ds_mla": 528, "bf16": 1024}


def e4m3_value(byte: int) -> float:
    """FP8 E4M3FN: 1 sign, 4 exponent (bias 7), 3 mantissa; no infinity, 0x7F is NaN."""
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if (exponent, mantissa) == (15, 7):
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


E4M3: Floats = np.array([e4m3_value(byte) for byte in range(256)])

HADAMARD: Floats = np.array(
    [[(-1.0) ** (row & column).bit_count() for column in range(128)] for row in range(128)]
) / np.sqrt(128.0)


def bf16(data: Bytes) -> Floats:
    """``[…, 2 n]`` bytes → ``[…, n]``."""
    bits = data.astype(np.uint32)
    return ((bits[..., 0::2] << 16) | (bits[..., 1::2] << 24)).view(np.float32).astype(np.float64)


def fp32(data: Bytes) -> Floats:
    """``[…, 4 n]`` bytes → ``[…, n]``."""
    return np.ascontiguousarray(data).view("<f4").astype(np.float64)


def latent(row: Bytes) -> Floats:
    """``[tokens, 528 or 1024]`` → ``[tokens, 512]``."""
    if row.shape[-1] == 1024:
        return bf16(row)
    return E4M3[row[:, :512]] * np.repeat(fp32(row[:, 512:]), 128, axis=1)


def keys(pages: Bytes, tokens: int) -> Floats:
    """``[pages, 8448]`` → keys ``[tokens, 128]``, not rotated."""
    out = np.empty((tokens, 128))
    for token in range(tokens):
        page, slot = pages[token // 64], token % 64
        scale = fp32(page[8192 + slot * 4 : 8196 + slot * 4])[0]
        out[token] = E4M3[page[slot * 128 : slot * 128 + 128]] * scale
    return out


@dataclass(frozen=True)
class Drawn:
    """A cache of random bytes, none of which is NaN."""

    rows: Bytes
    """``[layers, tokens, 656 or 1152]``."""
    pages: Bytes
    """``[layers, pages, 8448]``, garbage beyond the last token."""


def drawn(seed: int, layers: int, tokens: int, dtype: str) -> Drawn:
    rng = np.random.default_rng(seed)
    width = LATENT_BYTES[dtype]
    rows = np.empty((layers, tokens, width + 128), np.uint8)
    if dtype == "bf16":
        rows[..., :1024] = _bf16(rng, (layers, tokens, 512))
    else:
        rows[..., :512] = _fp8(rng, (layers, tokens, 512))
        rows[..., 512:528] = _scales(rng, (layers, tokens, 4))
    rows[..., width:] = _bf16(rng, (layers, tokens, 64))
    count = -(-tokens // 64)
    pages = np.empty((layers, count, 8448), np.uint8)
    pages[..., :8192] = _fp8(rng, (layers, count, 8192))
    pages[..., 8192:] = _scales(rng, (layers, count, 64))
    return Drawn(rows, pages)


def _fp8(rng: np.random.Generator, shape: tuple[int, ...]) -> Bytes:
    return (rng.integers(0, 127, shape) | rng.integers(0, 2, shape) << 7).astype(np.uint8)


def _scales(rng: np.random.Generator, shape: tuple[int, ...]) -> Bytes:
    exact = np.exp(rng.uniform(-12, 3, shape)).astype("<f4")
    return exact.view(np.uint8)


def _bf16(rng: np.random.Generator, shape: tuple[int, ...]) -> Bytes:
    single = rng.standard_normal(shape).astype("<f4")
    halves = np.ascontiguousarray((single.view(np.uint32) >> 16).astype("<u2"))
    return halves.view(np.uint8)
