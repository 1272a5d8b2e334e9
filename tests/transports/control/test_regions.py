from __future__ import annotations

import pytest

from tilert_stream.errors import ConfigError
from tilert_transports.control.errors import OutOfOrder
from tilert_transports.control.regions import LandingRegion, RegionPool

from .ledger import make_regions


def test_the_region_that_rested_longest_comes_next() -> None:
    pool = RegionPool(make_regions(3), slots=1)
    first, second = pool.acquire(), pool.acquire()
    assert first is not None
    assert second is not None
    assert (first.offset, second.offset) == (0, 1 << 20)
    pool.release(first)
    third = pool.acquire()
    assert third is not None
    assert third.offset == 2 << 20
    assert pool.acquire() == first
    assert pool.acquire() is None
    assert (pool.free, pool.quarantined) == (0, 0)


def test_a_quarantined_region_is_given_to_nobody() -> None:
    pool = RegionPool(make_regions(3), slots=1)
    region = pool.acquire()
    assert region is not None
    pool.quarantine(region)
    assert (pool.free, pool.quarantined) == (2, 1)
    assert region not in (pool.acquire(), pool.acquire())
    assert pool.acquire() is None
    pool.release(region)
    assert (pool.free, pool.quarantined) == (1, 0)
    assert pool.acquire() == region


def test_what_is_not_held_cannot_be_given_back() -> None:
    pool = RegionPool(make_regions(3), slots=1)
    region = pool.acquire()
    assert region is not None
    pool.release(region)
    for give in (pool.release, pool.quarantine):
        with pytest.raises(OutOfOrder, match="is not held"):
            give(region)
        with pytest.raises(OutOfOrder, match="is not held"):
            give(LandingRegion(9, 0, 1 << 20))
    assert pool.free == 3


@pytest.mark.parametrize(
    ("regions", "slots", "fault"),
    [
        (make_regions(3), 2, "landing_regions is 3; 2 decode slots need 4 or more"),
        ([], 1, "landing_regions is 0"),
        ([*make_regions(2), LandingRegion(8, 0, 5)], 1, r"have \[5, 1048576\] bytes"),
        ([LandingRegion(i, 0, 0) for i in range(3)], 1, r"have \[0\] bytes"),
        ([*make_regions(3), LandingRegion(7, 5, 1 << 20)], 1, "overlap"),
        ([*make_regions(2), *make_regions(1)], 1, "overlap"),
    ],
)
def test_regions_that_cannot_serve_are_refused(
    regions: list[LandingRegion], slots: int, fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault) as caught:
        RegionPool(regions, slots)
    assert caught.value.param == "landing_regions"


def test_regions_of_different_memories_may_have_the_same_offsets() -> None:
    pool = RegionPool([LandingRegion(i, 0, 64) for i in range(4)], slots=2)
    assert (pool.count, pool.nbytes) == (4, 64)
