"""A transport of one function: the plan's rows, copied byte by byte."""

from __future__ import annotations

from tilert_engine.layouts.abc import KVLayout, Row

UNTOUCHED = 0xA5


def copy_rows(rows: tuple[Row, ...], source: memoryview, target: memoryview) -> None:
    for src, dst, nbytes in rows:
        target[dst : dst + nbytes] = source[src : src + nbytes]


def landed(layout: KVLayout, kv: object, seq_len: int) -> memoryview:
    """A region into which every sender has written its part of ``kv``."""
    region = memoryview(bytearray([UNTOUCHED]) * layout.region_bytes)
    for rank in layout.sender_ranks:
        staging = memoryview(bytearray(layout.staging_bytes(seq_len, rank)))
        assert layout.pack(kv, staging, rank) == seq_len
        copy_rows(layout.plan(seq_len, rank), staging, region)
    return region
