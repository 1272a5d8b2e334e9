"""Where KV caches land: a fixed set of regions, each free, held by one grant, or quarantined.

There are more of them than decode slots, by at least two: a cache can land while all slots decode,
and while another region is quarantined because nobody knows yet that its writer has stopped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tilert_stream.errors import ConfigError

from .errors import OutOfOrder

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("SPARE_REGIONS", "LandingRegion", "RegionPool")

SPARE_REGIONS: Final = 2


@dataclass(frozen=True, slots=True, order=True)
class LandingRegion:
    """A range of registered memory, as the node's transport names it."""

    id: int
    """Of the registered memory."""
    offset: int
    """Bytes from its beginning."""
    nbytes: int


class RegionPool:
    """The landing regions of one decode node.

    :param slots: decode slots that they serve.
    :raises ~tilert_stream.errors.ConfigError: fewer than ``slots`` + 2, of different sizes, or
        overlapping.
    """

    __slots__ = ("_free", "_held", "_quarantined", "count", "nbytes")

    def __init__(self, regions: Iterable[LandingRegion], slots: int) -> None:
        found = sorted(regions)
        self.count = len(found)
        if self.count < slots + SPARE_REGIONS:
            raise ConfigError(
                f"landing_regions is {self.count}; {slots} decode slots need"
                f" {slots + SPARE_REGIONS} or more.",
                param="landing_regions",
            )
        sizes = {region.nbytes for region in found}
        if len(sizes) != 1 or min(sizes) < 1:
            raise ConfigError(
                f"the landing regions have {sorted(sizes)} bytes; all need the same size.",
                param="landing_regions",
            )
        for one, other in pairwise(found):
            if one.id == other.id and one.offset + one.nbytes > other.offset:
                raise ConfigError(
                    f"the landing regions {one} and {other} overlap; each needs its own bytes.",
                    param="landing_regions",
                )
        self.nbytes = sizes.pop()
        """Of each."""
        # First in, first out: a region rests as long as possible before it is used again.
        self._free = deque(found)
        self._held = set[LandingRegion]()
        self._quarantined = set[LandingRegion]()

    @property
    def free(self) -> int:
        """Regions that nobody has."""
        return len(self._free)

    @property
    def quarantined(self) -> int:
        """Regions that somebody may still write to, though nobody waits for it."""
        return len(self._quarantined)

    def acquire(self) -> LandingRegion | None:
        """A free region, held from now on; None if there is none."""
        if not self._free:
            return None
        region = self._free.popleft()
        self._held.add(region)
        return region

    def quarantine(self, region: LandingRegion) -> None:
        """Keep a held region out of use until ``release``.

        :raises OutOfOrder: nobody holds it.
        """
        self._leave(self._held, region)
        self._quarantined.add(region)

    def release(self, region: LandingRegion) -> None:
        """Make a held or quarantined region free.

        :raises OutOfOrder: it is free already, or none of these.
        """
        self._leave(self._quarantined if region in self._quarantined else self._held, region)
        self._free.append(region)

    def _leave(self, those: set[LandingRegion], region: LandingRegion) -> None:
        if region not in those:
            raise OutOfOrder(f"landing region {region} is not held")
        those.remove(region)
