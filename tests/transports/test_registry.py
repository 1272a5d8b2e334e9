from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from tilert_transports import registry
from tilert_transports.errors import TransportNotFound, TransportUnavailable
from tilert_transports.memory import MemoryTransport
from tilert_transports.tcp import TcpTransport


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    points: list[EntryPoint] = []

    def entry_points(*, group: str) -> EntryPoints:
        return EntryPoints(points).select(group=group)

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return points


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, registry.GROUP)


async def test_by_name_with_its_options() -> None:
    transport = registry.make("tcp", host="::1", advertise="fd00::7")
    assert isinstance(transport, TcpTransport)
    assert b"fd00::7" in transport.card()
    await transport.aclose()


def test_an_unknown_name_lists_the_known_ones(plugins: list[EntryPoint]) -> None:
    plugins.append(point("pigeon", "birds:Pigeon"))
    with pytest.raises(TransportNotFound) as caught:
        registry.make("rdma")
    assert caught.value.message == (
        "no transport is called 'rdma'; known: auto, memory, mooncake, nixl, pigeon, shm, tcp"
    )


def test_a_plugin_by_its_entry_point(plugins: list[EntryPoint]) -> None:
    plugins += [point("mine", "tilert_transports.memory:MemoryTransport")] * 2
    assert isinstance(registry.make("mine"), MemoryTransport)


def test_a_built_in_name_cannot_be_taken_over(plugins: list[EntryPoint]) -> None:
    plugins.append(point("memory", "tilert_transports.tcp:TcpTransport"))
    assert isinstance(registry.make("memory"), MemoryTransport)


def test_two_plugins_of_one_name(plugins: list[EntryPoint]) -> None:
    plugins += [point("mine", "a:A"), point("mine", "b:B")]
    with pytest.raises(TransportUnavailable, match="registered twice: a:A and b:B"):
        registry.make("mine")


@pytest.mark.parametrize("value", ["no.such.module:X", "tilert_transports.memory:Missing"])
def test_a_plugin_that_does_not_load(plugins: list[EntryPoint], value: str) -> None:
    plugins.append(point("mine", value))
    with pytest.raises(TransportUnavailable, match="cannot be loaded"):
        registry.make("mine")
