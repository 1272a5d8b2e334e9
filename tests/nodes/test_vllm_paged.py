from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.errors import ConfigError
from tilert_stream.nodes.vllm.paged import (
    CacheShape,
    PagedViews,
    block_index,
    copy_rows,
    paged_views,
)

HEADS, DIM = 2, 3


def written_cuda_packed(
    rows: torch.Tensor, blocks: list[int], size: int, count: int
) -> torch.Tensor:
    """``[blocks, H, N, 2 * D]``, physically token by token."""
    cache = torch.full((count, size, HEADS, 2 * DIM), -1.0)
    for token, (key, value) in enumerate(rows):
        place = cache[blocks[token // size], token % size]
        place[:, :DIM], place[:, DIM:] = key, value
    return cache.transpose(1, 2)


def written_kv_first(rows: torch.Tensor, blocks: list[int], size: int, count: int) -> torch.Tensor:
    """``[2, blocks, N, H, D]``."""
    cache = torch.full((2, count, size, HEADS, DIM), -1.0)
    for token, (key, value) in enumerate(rows):
        cache[0, blocks[token // size], token % size] = key
        cache[1, blocks[token // size], token % size] = value
    return cache


def written_blocks_first(
    rows: torch.Tensor, blocks: list[int], size: int, count: int
) -> torch.Tensor:
    """``[blocks, 2, N, H, D]``."""
    return written_kv_first(rows, blocks, size, count).transpose(0, 1).contiguous()


def written_cpu_packed(
    rows: torch.Tensor, blocks: list[int], size: int, count: int
) -> torch.Tensor:
    """``[blocks, H, N, 2 * D]`` that holds, head by head, transposed keys and then values."""
    flat = torch.full((count, HEADS, 2 * size * DIM), -1.0)
    for token, (key, value) in enumerate(rows):
        block, place = blocks[token // size], token % size
        for head in range(HEADS):
            for element in range(DIM):
                flat[block, head, element * size + place] = key[head, element]
                flat[block, head, DIM * size + place * DIM + element] = value[head, element]
    return flat.view(count, HEADS, size, 2 * DIM)


def written_cpu_apart(rows: torch.Tensor, blocks: list[int], size: int, count: int) -> torch.Tensor:
    """``[2, blocks, H, N, D]``, each block's keys transposed."""
    packed = written_cpu_packed(rows, blocks, size, count).view(count, HEADS, 2, size * DIM)
    return packed.permute(2, 0, 1, 3).contiguous().view(2, count, HEADS, size, DIM)


class Backend(NamedTuple):
    write: Callable[[torch.Tensor, list[int], int, int], torch.Tensor]
    cpu: bool


BACKENDS = [
    pytest.param(Backend(written_cuda_packed, cpu=False), id="cuda-packed"),
    pytest.param(Backend(written_kv_first, cpu=False), id="flash-attention"),
    pytest.param(Backend(written_blocks_first, cpu=False), id="blocks-first"),
    pytest.param(Backend(written_cpu_packed, cpu=True), id="cpu-packed"),
    pytest.param(Backend(written_cpu_apart, cpu=True), id="cpu-apart"),
]


def drawn(tokens: int) -> torch.Tensor:
    """``[tokens, 2, heads, head_dim]``, every element another."""
    return torch.arange(tokens * 2 * HEADS * DIM, dtype=torch.float32).view(tokens, 2, HEADS, DIM)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ratio", [1, 2])
@given(data=st.data())
def test_rows_come_out_as_they_went_in(backend: Backend, ratio: int, data: st.DataObject) -> None:
    """``ratio``: blocks of the tensor in a block of the table."""
    size = data.draw(st.integers(1, 5))
    tokens = data.draw(st.integers(1, 23))
    needed = -(-tokens // (size * ratio))
    table = data.draw(st.permutations(range(needed + 3)))[:needed]
    kernel_blocks = [block * ratio + part for block in table for part in range(ratio)]
    rows = drawn(tokens)
    cache = backend.write(rows, kernel_blocks, size, (needed + 3) * ratio)
    views = paged_views(cache, CacheShape(size * ratio, HEADS, DIM, cpu_backend=backend.cpu))
    index = block_index(views, table, size * ratio, tokens)
    for kind, source in enumerate(views):
        target = torch.full((tokens, HEADS, DIM), -2.0)
        copy_rows(source, index, target)
        assert torch.equal(target, rows[:, kind])


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_copy_nothing(backend: Backend) -> None:
    cache = backend.write(drawn(4), [1, 0], 2, 2)
    views = paged_views(cache, CacheShape(2, HEADS, DIM, cpu_backend=backend.cpu))
    start = cache.untyped_storage().data_ptr()
    for view in views:
        assert view.untyped_storage().data_ptr() == start
        assert view.shape == (2, 2, HEADS, DIM)


@pytest.mark.parametrize(
    ("shape", "cpu"),
    [
        ((5, HEADS, 4, DIM), False),
        ((5, HEADS + 1, 4, 2 * DIM), False),
        ((2, 5, 4, HEADS, DIM), True),
        ((2, 5, HEADS, 4, DIM), False),
        ((3, 5, 4, HEADS, DIM), False),
        ((5, 4), True),
    ],
)
def test_a_shape_of_no_known_backend_is_refused(shape: tuple[int, ...], cpu: bool) -> None:
    with pytest.raises(ConfigError, match=r"shape \[.*\] on cpu, .* 2 heads of 3 in blocks of 4"):
        paged_views(torch.zeros(shape), CacheShape(4, HEADS, DIM, cpu_backend=cpu))


def test_kv_06_another_block_size_is_refused_with_both_values() -> None:
    with pytest.raises(ConfigError, match=r"blocks of 4 tokens, the block table of 6; .* 4"):
        paged_views(torch.zeros(5, HEADS, 4, 2 * DIM), CacheShape(6, HEADS, DIM))


def test_kv_09_blocks_that_do_not_exist_are_refused() -> None:
    views = PagedViews(torch.zeros(4, 2, HEADS, DIM), torch.zeros(4, 2, HEADS, DIM))
    with pytest.raises(ValueError, match="blocks 1 to 4 are asked for; the cache has 4"):
        block_index(views, [1, 4], 2, 3)
    with pytest.raises(ValueError, match="blocks -1 to 1 are asked for; the cache has 4"):
        block_index(views, [1, -1], 2, 3)
    with pytest.raises(ValueError, match="3 tokens take 2 blocks of 2; there are 1"):
        block_index(views, [1], 2, 3)
