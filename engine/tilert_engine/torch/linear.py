"""A linear layer: activations and a weight matrix in, activations out; fast for one token too."""

from __future__ import annotations

import torch
from torch.nn import functional as nn

__all__ = ("linear",)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias``: ``[tokens, in]``, ``[out, in]`` and ``[out]`` to ``[tokens, out]``.

    One token is a matrix-vector product, bound by reading ``weight``. On CPU, float32, BLAS runs it
    on one thread, which cannot draw the memory's bandwidth alone (measured on two cores: 14 against
    23 GB/s). Cut into one block of rows a thread, it is a batch, whose members run in parallel.
    """
    parts = torch.get_num_threads()
    rows, columns = weight.shape
    single = x.shape[0] == 1 and x.dtype == torch.float32 and x.device.type == "cpu"
    if not single or parts == 1 or rows % parts:
        return nn.linear(x, weight, bias)
    blocks = weight.view(parts, rows // parts, columns).transpose(1, 2)
    out = torch.bmm(x.expand(parts, 1, columns), blocks).view(1, rows)
    return out if bias is None else out + bias
