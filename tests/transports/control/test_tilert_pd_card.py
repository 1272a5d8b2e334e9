"""What TileRT's senders are told of landing memory."""

from __future__ import annotations

from base64 import b64decode

import pytest

from tests.transports.kit import BACKENDS
from tilert_stream.errors import ConfigError
from tilert_transports.control.tilert_pd_card import tilert_place
from tilert_transports.errors import RegionInvalid
from tilert_transports.memory import MemoryTransport
from tilert_transports.nixl import NixlTransport
from tilert_transports.nixl_binding import installed


async def test_a_transport_that_tilert_does_not_have() -> None:
    async with MemoryTransport() as transport:
        memory = await transport.allocate(4096)
        with pytest.raises(ConfigError, match=r"'memory'; .* must be nixl or mooncake"):
            tilert_place(transport, memory)


@pytest.mark.skipif(not installed(), reason="no NIXL wheel")
@pytest.mark.parametrize("anyio_backend", BACKENDS)
async def test_nixls_own_metadata_and_addresses() -> None:
    async with NixlTransport() as transport:
        with pytest.raises(RegionInvalid, match="needs a region"):
            _ = transport.metadata
        memory = await transport.allocate(8192)
        whole = tilert_place(transport, memory)
        assert whole.transport == "nixl"
        assert whole.address == transport.locate(memory).address
        assert whole.card["nixl_dev"] == 0
        assert b64decode(str(whole.card["nixl_meta"])) == transport.metadata
        part = tilert_place(transport, memory.part(4096, 4096))
        assert part.address == whole.address + 4096
        with pytest.raises(RegionInvalid):
            transport.locate(type(memory)(memory.id, 4096, 8192))
