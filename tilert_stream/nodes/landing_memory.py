"""Where KV caches land on a decode node: a transport in, landing regions and their bytes out.

That is host memory, or a CUDA device's own.
"""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import CancelScope, to_thread

from tilert_stream.errors import ConfigError
from tilert_transports.abc import Region
from tilert_transports.control.regions import LandingRegion
from tilert_transports.registry import load

from .device_memory import device_memory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractContextManager

    import torch

    from tilert_engine.layouts.abc import KVLayout, Landed
    from tilert_transports.abc import Transport

__all__ = ("LandingMemory", "transport_maker")

PAGE: Final = 4096
"""Bytes. Each landing region begins on a page of its own."""


def transport_maker(
    name: str, *, host: str, advertise: str | None = None
) -> Callable[[], Transport]:
    """Makes transports by name; those that listen, listen on ``host``.

    :param advertise: where peers find it, if not there.

    :raises ~tilert_transports.errors.TransportNotFound: no such name; the known ones are listed.
    :raises ~tilert_transports.errors.TransportUnavailable: its library is missing.
    """
    factory = load(name)
    if name not in ("auto", "tcp"):
        return factory
    return partial(factory, host=_address(host), advertise=advertise)


def _address(host: str) -> str:
    """The first address of ``host``: a transport listens on one.

    :raises ~tilert_stream.errors.ConfigError: it has none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"host is {host!r}: {error.strerror or error}.", param="host") from error
    return str(found[0][4][0])


class LandingMemory:
    """One registered piece of memory, cut into landing regions. Made by ``allocate``."""

    def __init__(
        self,
        transport: Transport,
        memory: Region,
        regions: list[LandingRegion],
        tensor: torch.Tensor | None = None,
    ) -> None:
        self._transport = transport
        self._tensor = tensor
        self.memory = memory
        """All of it."""
        self.regions = regions

    @classmethod
    async def allocate(
        cls, transport: Transport, layout: KVLayout, count: int, *, device: str | None = None
    ) -> LandingMemory:
        """Room for ``count`` KV caches of the longest kind.

        :param device: ``cuda:0``: in that device's memory; None: in the host's.
        :raises ~tilert_stream.errors.ConfigError: the transport writes to host memory alone, or the
            device has no room.
        """
        stride = -(-layout.region_bytes // PAGE) * PAGE
        tensor = None
        if device is None:
            memory = await transport.allocate(stride * count)
        else:
            if not transport.caps.device_memory:
                raise ConfigError(
                    f"landing_memory is 'device' and transport is {transport.name!r}, which writes"
                    " to host memory alone; set --transport nixl, or --landing-memory host",
                    param="landing_memory",
                )
            tensor = await to_thread.run_sync(device_memory, stride * count, device)
            memory = await transport.register(tensor)
        regions = [
            LandingRegion(memory.id, memory.offset + stride * index, layout.region_bytes)
            for index in range(count)
        ]
        return cls(transport, memory, regions, tensor)

    @asynccontextmanager
    async def prepared(
        self, prepare: Callable[[memoryview], AbstractContextManager[object]]
    ) -> AsyncGenerator[None]:
        """While inside, all of it is ready for who reads it; ``prepare`` is entered in a thread.

        A device's own memory needs no preparing.
        """
        if self._tensor is not None:
            yield
            return
        context = prepare(self._transport.view(self.memory))
        await to_thread.run_sync(context.__enter__)
        try:
            yield
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(context.__exit__, None, None, None)

    def view(self, region: LandingRegion) -> Landed:
        """A landing region's bytes."""
        if self._tensor is not None:
            return self._tensor[region.offset : region.offset + region.nbytes]
        return self._transport.view(Region(region.id, region.offset, region.nbytes))
