"""Several transports as one: each peer is reached by the best that both sides have.

In: a card that bundles the cards of all parts. Out: a peer of one part. The choice is ``shm`` for
processes of one host, else ``nixl`` where both have it, else ``tcp``: read from the two cards, so
that both sides of a pair can tell it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

from anyio.abc import AsyncResource

from .abc import Caps, Peer, Region
from .bundle import Bundle, Part
from .errors import HandshakeMismatch, RegionInvalid, TransportClosed
from .host import HOST_ID
from .nixl import NixlTransport
from .nixl_binding import installed
from .shm import ShmTransport
from .tcp import TcpTransport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .abc import DeviceBuffer, HostBuffer, Receipt, Transport
    from .plan import Plan

__all__ = ("AutoTransport", "choose", "make_auto")

PREFERENCE: Final = ("shm", "nixl", "tcp")
"""The fastest first. Between processes of one host, copying once beats every network."""


def choose(ours: Bundle, theirs: Bundle) -> str:
    """The transport that joins two sides.

    :raises HandshakeMismatch: they have none in common.
    """
    for name in PREFERENCE:
        if name in ours.parts and name in theirs.parts:
            if name == "shm" and ours.host != theirs.host:
                continue
            return name
    raise HandshakeMismatch(
        f"no transport joins the two sides: ours are {', '.join(sorted(ours.parts)) or 'none'},"
        f" the peer's {', '.join(sorted(theirs.parts)) or 'none'}; start both with the same one"
    )


def make_auto(
    *, host: str = "127.0.0.1", port: int = 0, advertise: str | None = None
) -> AutoTransport:
    """``shm``, ``tcp``, and ``nixl`` where it is installed; the options are those of ``tcp``."""
    parts: list[Transport] = [
        ShmTransport(),
        TcpTransport(host=host, port=port, advertise=advertise),
    ]
    if installed():
        parts.append(NixlTransport())
    return AutoTransport(parts)


class AutoTransport(AsyncResource):
    """Regions are known to every part that can have them.

    :param parts: one of each name at most; closed with this one.
    """

    name = "auto"

    def __init__(self, parts: list[Transport]) -> None:
        self._parts = {part.name: part for part in parts}
        self._regions: dict[int, dict[str, Region]] = {}
        self._peers: dict[Peer, tuple[Transport, Peer, Mapping[int, int]]] = {}
        self._closed = False
        self.incarnation = uuid4().hex

    @property
    def caps(self) -> Caps:
        """What holds whichever part joins a pair."""
        every = [part.caps for part in self._parts.values()]
        return Caps(
            one_sided=all(caps.one_sided for caps in every),
            zero_copy=all(caps.zero_copy for caps in every),
            hard_abort=all(caps.hard_abort for caps in every),
            same_host_only=all(caps.same_host_only for caps in every),
            device_memory=any(caps.device_memory for caps in every),
            max_descriptors=min(caps.max_descriptors for caps in every),
        )

    async def allocate(self, nbytes: int) -> Region:
        """See ``Transport.allocate``. Shared memory if there is ``shm``: every part can use it."""
        self._check_open()
        first = self._parts.get("shm") or next(iter(self._parts.values()))
        known = {first.name: await first.allocate(nbytes)}
        buffer = first.view(known[first.name])
        for name, part in self._parts.items():
            if name != first.name:
                known[name] = await part.register(buffer)
        return self._add(known, nbytes)

    async def register(self, buffer: HostBuffer | DeviceBuffer) -> Region:
        """See ``Transport.register``. Parts that cannot use the buffer do without it."""
        self._check_open()
        known: dict[str, Region] = {}
        refusals: list[str] = []
        for name, part in self._parts.items():
            try:
                known[name] = await part.register(buffer)
            except RegionInvalid as error:
                refusals.append(f"{name}: {error}")
        if not known:
            raise RegionInvalid(f"no transport can use the buffer ({'; '.join(refusals)})")
        return self._add(known, next(iter(known.values())).nbytes)

    def _add(self, known: dict[str, Region], nbytes: int) -> Region:
        region = Region(len(self._regions), 0, nbytes)
        self._regions[region.id] = known
        return region

    def view(self, region: Region) -> memoryview:
        """See ``Transport.view``."""
        name, known = next(iter(self._known(region.id).items()))
        return self._parts[name].view(_inside(known, region))

    def card(self) -> bytes:
        """See ``Transport.card``."""
        return self._bundle().encode()

    def _bundle(self) -> Bundle:
        self._check_open()
        parts: dict[str, Part] = {}
        for name, part in self._parts.items():
            ids = {id_: known[name].id for id_, known in self._regions.items() if name in known}
            if ids or name != "nixl":  # a NIXL card needs a region
                parts[name] = Part(part.card(), ids)
        return Bundle(self.incarnation, HOST_ID, parts)

    async def connect(self, card: bytes, *, timeout: float) -> Peer:  # noqa: ASYNC109 - the contract's
        """See ``Transport.connect``."""
        theirs = Bundle.decode(card)
        name = choose(self._bundle(), theirs)
        part, chosen = self._parts[name], theirs.parts[name]
        inner = await part.connect(chosen.card, timeout=timeout)
        regions = {
            id_: Region(id_, 0, inner.regions[part_id].nbytes)
            for id_, part_id in chosen.regions.items()
            if part_id in inner.regions
        }
        peer = Peer(name, theirs.incarnation, regions)
        self._peers[peer] = part, inner, chosen.regions
        return peer

    async def write(
        self, peer: Peer, source: Region, target: Region, plan: Plan, *, deadline: float
    ) -> Receipt:
        """See ``Transport.write``."""
        part, inner, ids = self._peer(peer)
        known = self._known(source.id).get(part.name)
        if known is None:
            raise RegionInvalid(f"region {source.id} is of a kind that {part.name} cannot read")
        if target.id not in peer.regions:
            raise RegionInvalid(
                f"region {target.id} is not writable at the peer by {part.name};"
                " register it before the card is made"
            )
        return await part.write(
            inner,
            _inside(known, source),
            Region(ids[target.id], target.offset, target.nbytes),
            plan,
            deadline=deadline,
        )

    async def drain(self, peer: Peer, *, timeout: float) -> bool:  # noqa: ASYNC109 - the contract's
        """See ``Transport.drain``."""
        part, inner, _ = self._peer(peer)
        return await part.drain(inner, timeout=timeout)

    async def disconnect(self, peer: Peer) -> None:
        """See ``Transport.disconnect``."""
        part, inner, _ = self._peer(peer)
        await part.disconnect(inner)
        self._peers.pop(peer, None)

    async def aclose(self) -> None:
        """See ``Transport.aclose``."""
        self._closed = True
        self._peers.clear()
        for part in self._parts.values():
            await part.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportClosed("the auto transport is closed")

    def _known(self, region: int) -> dict[str, Region]:
        known = self._regions.get(region)
        if known is None:
            raise RegionInvalid(f"region {region} is not one of this transport")
        return known

    def _peer(self, peer: Peer) -> tuple[Transport, Peer, Mapping[int, int]]:
        self._check_open()
        found = self._peers.get(peer)
        if found is None:
            raise TransportClosed(
                f"peer {peer.incarnation} is not connected through this auto transport"
            )
        return found


def _inside(known: Region, region: Region) -> Region:
    """The same part of the same memory, as a part of ``auto`` knows it."""
    return Region(known.id, region.offset, region.nbytes)
