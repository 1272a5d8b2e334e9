"""A linear layer: activations and a weight matrix in, activations out; fast for few tokens too."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional as nn

__all__ = ("linear",)

_FEW: Final = 8


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias``: ``[tokens, in]``, ``[out, in]`` and ``[out]`` to ``[tokens, out]``.

    One token is a matrix-vector product, and a few (drafts that are verified) cost little more:
    bound by reading ``weight``. On CPU, float32, BLAS runs it on one thread, which cannot draw the
    memory's bandwidth alone (measured on two cores: 14 against 23 GB/s for one token; four tokens
    take 2 to 4 times as long). Cut into one block of rows a thread, it is a batch, whose members
    run in parallel.
    """
    parts, tokens = torch.get_num_threads(), x.shape[0]
    rows, columns = weight.shape
    few = tokens <= _FEW and x.dtype == torch.float32 and x.device.type == "cpu"
    if not few or parts == 1 or rows % parts:
        return nn.linear(x, weight, bias)
    blocks = weight.view(parts, rows // parts, columns).transpose(1, 2)
    out = torch.bmm(x.expand(parts, tokens, columns), blocks)
    out = out.transpose(0, 1).reshape(tokens, rows)
    return out if bias is None else out + bias
