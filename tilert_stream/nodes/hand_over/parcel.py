"""A KV cache that waits to leave, and the contract of who takes it away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from .destination import Destination

__all__ = ("Courier", "OpenCourier", "Parcel")


@dataclass(frozen=True, slots=True)
class Parcel:
    """A KV cache in the staging memory, and where it goes."""

    request_id: str
    """vLLM's own id."""
    destination: Destination
    seq_len: int
    last_token: int
    """The prompt's last id."""
    digest: str
    """Of the prompt's ids, as ``prompt_digest`` makes it."""
    offset: int
    """Bytes from the staging memory's beginning."""
    nbytes: int


class Courier(Protocol):
    """Speaks to decode nodes, on the sender's event loop."""

    @property
    def staging(self) -> memoryview:
        """All of the staging memory."""
        ...

    async def deliver(self, parcel: Parcel) -> None:
        """Hand one KV cache over, or tell the decode node why not; also when cancelled.

        Nothing reads the parcel any more when it returns.

        :raises ~tilert_stream.errors.TilertStreamError: it did not get there.
        """
        ...

    async def refuse(self, request_id: str, destination: Destination, reason: str) -> None:
        """Tell a decode node that nothing will come.

        :param request_id: vLLM's own id.
        :raises ~tilert_stream.errors.TilertStreamError: it cannot be told.
        """
        ...


OpenCourier: TypeAlias = "Callable[[], AbstractAsyncContextManager[Courier]]"
