"""NIXL to and from a CUDA device's memory. On a machine with neither it is skipped."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import anyio.to_thread
import pytest
import torch

from tests.transports.kit import SOON, scattered, soon
from tilert_transports.abc import Region
from tilert_transports.nixl import NixlTransport
from tilert_transports.nixl_binding import installed
from tilert_transports.plan import Plan

pytestmark = [
    pytest.mark.skipif(not installed(), reason="no NIXL wheel"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

Place: TypeAlias = Literal["cpu", "cuda"]
MIB = 1 << 20
PLACES: list[tuple[Place, Place]] = [("cpu", "cuda"), ("cuda", "cuda"), ("cuda", "cpu")]

# Another process: registers device memory, says its card, and what has landed once it is asked.
READER = """
import anyio, sys, zlib, torch
from tilert_transports.nixl import NixlTransport

async def main(nbytes):
    memory = torch.zeros(nbytes, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    async with NixlTransport() as transport:
        await transport.register(memory)
        print(transport.card().hex(), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        print(zlib.crc32(memory.cpu().numpy().data), flush=True)

anyio.run(main, int(sys.argv[1]))
"""


def noise(nbytes: int, place: Place) -> torch.Tensor:
    generator = torch.Generator().manual_seed(nbytes)
    made = torch.randint(0, 256, (nbytes,), generator=generator, dtype=torch.uint8)
    return made.to(place)


def crc(memory: torch.Tensor) -> int:
    return zlib.crc32(memory.cpu().numpy().data)


async def registered(transport: NixlTransport, memory: torch.Tensor) -> Region:
    torch.cuda.synchronize()
    return await transport.register(memory if memory.is_cuda else memory.numpy())


@asynccontextmanager
async def both() -> AsyncGenerator[tuple[NixlTransport, NixlTransport]]:
    async with NixlTransport() as writer, NixlTransport() as reader:
        yield writer, reader


@pytest.mark.parametrize(("here", "there"), PLACES)
@pytest.mark.parametrize("nbytes", [1, 255, 4097, MIB, 64 * MIB])
async def test_all_bytes_arrive(here: Place, there: Place, nbytes: int) -> None:
    async with both() as (writer, reader):
        source = noise(nbytes, here)
        target = torch.zeros(nbytes, dtype=torch.uint8, device=there)
        sent, landed = await registered(writer, source), await registered(reader, target)
        peer = await writer.connect(reader.card(), timeout=SOON)
        receipt = await writer.write(peer, sent, landed, Plan.whole(nbytes), deadline=soon())
        assert receipt.nbytes == nbytes
        assert crc(target) == crc(source)


@pytest.mark.parametrize(("here", "there"), PLACES)
@pytest.mark.parametrize("count", [2, 237, 4096])
async def test_many_segments(here: Place, there: Place, count: int) -> None:
    nbytes = 256 * 4096
    size = nbytes // count
    async with both() as (writer, reader):
        source = noise(nbytes, here)
        target = torch.zeros(nbytes, dtype=torch.uint8, device=there)
        sent, landed = await registered(writer, source), await registered(reader, target)
        peer = await writer.connect(reader.card(), timeout=SOON)
        await writer.write(peer, sent, landed, scattered(nbytes, count), deadline=soon())
        turned = source[: size * count].view(count, size).flip(0).flatten()
        assert crc(target[: size * count]) == crc(turned)


@pytest.mark.parametrize("here", ["cpu", "cuda"])
@pytest.mark.parametrize("nbytes", [1, MIB, 64 * MIB])
async def test_another_process_s_device_memory(here: Place, nbytes: int) -> None:
    with subprocess.Popen(  # noqa: ASYNC220 - starts at once; our own interpreter
        [sys.executable, "-c", READER, str(nbytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        read = process.stdout.readline
        card = bytes.fromhex((await anyio.to_thread.run_sync(read)).strip())
        async with NixlTransport() as writer:
            source = noise(nbytes, here)
            sent = await registered(writer, source)
            peer = await writer.connect(card, timeout=SOON)
            (landed,) = peer.regions.values()
            receipt = await writer.write(peer, sent, landed, Plan.whole(nbytes), deadline=soon())
            assert receipt.nbytes == nbytes
            process.stdin.write("\n")
            process.stdin.flush()
            assert int(await anyio.to_thread.run_sync(read)) == crc(source)
