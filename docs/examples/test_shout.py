"""What the test of a stage looks like."""

from __future__ import annotations

from shout import Shout

from tilert_stream.testing import assert_contract


def test_shout() -> None:
    assert_contract(Shout)
