"""The import of a KV cache, beside the rate at which pinned bytes reach the device.

    python -m bench.gpu.kv_import [--tokens 8192] [--layers 79] [--rounds 20] [--seconds 60]

Both in turn; the share is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import torch

from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_cache import WirePlanes, import_planes
from tilert_engine.layouts.mla_nsa_format import read_latent, read_pages
from tilert_engine.layouts.mla_nsa_model import MlaNsaModel

from .device import need_device, seconds_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--room", type=int, default=9216, help="the region's max_seq_len")
    parser.add_argument("--layers", type=int, default=79)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    device = need_device(given.device)
    pinned = device.type == "cuda"
    layout = MlaNsaLayout(
        model=MlaNsaModel("glm5", given.layers - 1), dtype="fp8_ds_mla", max_seq_len=given.room
    )
    planes = _planes(layout, given.tokens, pinned=pinned)
    total = sum(plane.nbytes for plane in planes)
    source = torch.zeros(total, dtype=torch.uint8, pin_memory=pinned)
    target = torch.empty(total, dtype=torch.uint8, device=device)
    copy = partial(target.copy_, source, non_blocking=True)
    bring = partial(import_planes, "glm5", planes, device=device)
    _check(planes, given.tokens, device)
    for call in (copy, bring, copy, bring):
        call()
    end = time.monotonic() + given.seconds
    rates: list[tuple[float, float]] = []
    while len(rates) < given.rounds and (len(rates) < 3 or time.monotonic() < end):
        rates.append((total / seconds_of(copy, device), total / seconds_of(bring, device)))
    pure, ours = (statistics.median(column) / 1e9 for column in zip(*rates, strict=True))
    share = statistics.median(mine / bare for bare, mine in rates)
    print(
        f"{given.layers} layers, {given.tokens} tokens, {total / 1e6:.0f} MB:"
        f" copy {pure:.1f} GB/s, import {ours:.1f} GB/s ({total / ours / 1e6:.2f} ms),"
        f" share {share:.1%} of {len(rates)} rounds (wanted: 80 %)"
    )


def _planes(layout: MlaNsaLayout, tokens: int, *, pinned: bool) -> WirePlanes:
    """Views of a region in which random numbers have landed."""
    region = torch.zeros(layout.region_bytes, dtype=torch.uint8, pin_memory=pinned)
    planes = layout.landed(memoryview(region.numpy().data), tokens)
    generator = torch.Generator().manual_seed(1)
    # Of each byte the lowest bits: neither a NaN in fp8 nor a scale that is not finite.
    for plane in planes:
        noise = torch.randint(0, 60, plane.shape[1:], generator=generator, dtype=torch.uint8)
        plane.copy_(noise.expand_as(plane))
    return planes


def _check(planes: WirePlanes, tokens: int, device: torch.device) -> None:
    """What arrives is what the same bytes give on the host, but for the rotation's last bits."""
    brought = import_planes("glm5", planes, device=device)
    for layer in (0, planes.kv.shape[0] - 1):
        latents = read_latent(planes.kv[layer])
        if not torch.equal(brought.kv[layer].cpu(), latents):
            raise SystemExit(f"the latents of layer {layer} differ")
        keys = read_pages(planes.ki[layer], tokens).float()
        torch.testing.assert_close(brought.ki[layer].cpu().float(), keys, rtol=2e-2, atol=1e-3)
    print("the import on the device gives what it gives on the host", flush=True)


if __name__ == "__main__":
    main()
