"""Landing memory as TileRT's senders are told of it: our transport in, the hello's card out.

Their libraries write to absolute addresses: NIXL's with the agent's metadata, Mooncake's with the
engine's session.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilert_stream.errors import ConfigError

from ..mooncake import MooncakeTransport
from ..nixl import NixlTransport
from ..nixl_memory import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..abc import Region, Transport

__all__ = ("TilertPlace", "tilert_place")


@dataclass(frozen=True, slots=True)
class TilertPlace:
    """Where TileRT's senders write."""

    transport: str
    """``mooncake`` or ``nixl``."""
    card: Mapping[str, str | int]
    """See ``TilertHello.card``."""
    address: int
    """Of the memory's first byte."""


def tilert_place(transport: Transport, memory: Region) -> TilertPlace:
    """How a TileRT sender reaches ``memory``. Once all regions are registered.

    :raises ~tilert_stream.errors.ConfigError: TileRT's senders have no such transport.
    """
    if isinstance(transport, NixlTransport):
        location = transport.locate(memory)
        card: dict[str, str | int] = {
            "nixl_meta": b64encode(transport.metadata).decode(),
            "nixl_dev": 0 if location.device == HOST else location.device,
        }
        return TilertPlace("nixl", card, location.address)
    if isinstance(transport, MooncakeTransport):
        address = transport.address(memory)
        return TilertPlace("mooncake", {"session_id": transport.session}, address)
    raise ConfigError(
        f"transport is {transport.name!r}; with --pd-dialect tilert-pd it must be nixl or mooncake,"
        " as the prefill connector's tilert_transport",
        param="transport",
    )
