"""The import of a KV cache, beside the rate at which pinned bytes reach the device.

    python -m bench.gpu.kv_import [--tokens 8192] [--layers 79] [--rounds 20] [--seconds 60]

The cache lies in shared memory that is page-locked as a decode node's landing regions are; where
that is refused, and with ``--memory torch``, in memory that torch has allocated page-locked. All in
turn; the share is the median of the rounds' ratios. ``copies`` are the import's own without what is
computed, ``by layer`` the same bytes by torch, three copies a layer, ``computing`` what is computed
without the copies.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import torch

from tilert_engine.layouts.host_memory import copy_runs, page_locked
from tilert_engine.layouts.mla_nsa import MlaNsaLayout
from tilert_engine.layouts.mla_nsa_cache import WirePlanes, import_planes
from tilert_engine.layouts.mla_nsa_format import read_latent, read_pages
from tilert_engine.layouts.mla_nsa_model import INDEXER, LATENT, ROPE, MlaNsaModel
from tilert_transports.host_memory import prefault
from tilert_transports.shm_memory import SharedMemory

from .device import need_device, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = 8
"""Layers at a time, as the import takes most."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--room", type=int, default=9216, help="the region's max_seq_len")
    parser.add_argument("--layers", type=int, default=79)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--memory", choices=["shared", "torch"], default="shared")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    device = need_device(given.device)
    layout = MlaNsaLayout(
        model=MlaNsaModel("glm5", given.layers - 1), dtype="fp8_ds_mla", max_seq_len=given.room
    )
    memory = SharedMemory(layout.region_bytes)
    prefault(memory)
    with ExitStack() as stack:
        begin = time.perf_counter()
        stack.enter_context(page_locked(memory.view, device))
        took = time.perf_counter() - begin
        planes = layout.landed(memory.view, given.tokens)
        locked = planes.kv.is_pinned()
        print(f"page-locked: {locked}, {memory.nbytes / 1e9:.2f} GB in {took:.2f} s", flush=True)
        if given.memory == "torch" or (device.type == "cuda" and not locked):
            pinned = device.type == "cuda"
            region = torch.zeros(layout.region_bytes, dtype=torch.uint8, pin_memory=pinned)
            planes = layout.landed(memoryview(region.numpy().data), given.tokens)
            print("measured is torch's own page-locked memory", flush=True)
        _measure(_fill(planes), given, device)


def _measure(planes: WirePlanes, given: argparse.Namespace, device: torch.device) -> None:
    total = sum(plane.nbytes for plane in planes)
    source = torch.zeros(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty(total, dtype=torch.uint8, device=device)
    there = [torch.empty(plane.shape, dtype=torch.uint8, device=device) for plane in planes]
    calls: dict[str, Callable[[], object]] = {
        "bare": partial(target.copy_, source, non_blocking=True),
        "import": partial(import_planes, "glm5", planes, device=device),
        "copies": partial(_copies, planes, there),
        "by layer": partial(_by_layer, planes, there),
        "computing": partial(_computing, there, given.tokens),
    }
    for call in (*calls.values(), *calls.values()):
        call()
    end = time.monotonic() + given.seconds
    took: dict[str, list[float]] = {name: [] for name in calls}
    hosts: list[float] = []
    while len(hosts) < given.rounds and (len(hosts) < 3 or time.monotonic() < end):
        for name, call in calls.items():
            before = time.thread_time()
            took[name].append(seconds_of(call, device))
            if name == "import":
                hosts.append(time.thread_time() - before)
    share = statistics.median(b / i for b, i in zip(took["bare"], took["import"], strict=True))
    print(
        f"{given.layers} layers, {given.tokens} tokens, {total / 1e6:.0f} MB, {len(hosts)} rounds: "
        + ", ".join(f"{name} {_figures(total, times)}" for name, times in took.items())
        + f"; the import's thread computes {statistics.median(hosts) * 1e3:.2f} ms;"
        f" share of the bare copy's rate {share:.1%} (wanted: 80 %)",
        flush=True,
    )
    _check(planes, given.tokens, device)


def _figures(total: int, times: list[float]) -> str:
    seconds = statistics.median(times)
    return f"{seconds * 1e3:.2f} ms ({total / seconds / 1e9:.1f} GB/s)"


def _copies(planes: WirePlanes, there: list[torch.Tensor]) -> None:
    for first in range(0, len(planes.kv), GROUP):
        for plane, target in zip(planes, there, strict=True):
            copy_runs(target[first : first + GROUP], plane[first : first + GROUP])


def _by_layer(planes: WirePlanes, there: list[torch.Tensor]) -> None:
    for plane, target in zip(planes, there, strict=True):
        for run, place in zip(plane, target, strict=True):
            place.copy_(run, non_blocking=True)


def _computing(there: list[torch.Tensor], tokens: int) -> None:
    latents, rope, pages = there
    layers, device = len(latents), latents.device
    ki, kv, pe = (
        torch.empty(layers, tokens, width, dtype=torch.bfloat16, device=device)
        for width in (INDEXER, LATENT, ROPE)
    )
    for first in range(0, layers, GROUP):
        group = slice(first, first + GROUP)
        read_latent(latents[group], out=kv[group])
        pe[group] = rope[group].view(torch.bfloat16)
        read_pages(pages[group], tokens, out=ki[group])


def _fill(planes: WirePlanes) -> WirePlanes:
    """Random numbers, as if they had landed."""
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
