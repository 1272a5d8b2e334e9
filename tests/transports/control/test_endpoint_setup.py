"""Around the hand-offs: addresses, warnings, handles."""

from __future__ import annotations

import socket

import anyio
import pytest

from tilert_stream.errors import ConfigError
from tilert_transports.control.client import ControlClient
from tilert_transports.control.errors import (
    GrantGone,
    HandshakeRefused,
    OutOfOrder,
    PeerLost,
)
from tilert_transports.control.frames import encode_frame
from tilert_transports.control.listener import bind
from tilert_transports.control.regions import LandingRegion
from tilert_transports.control.reservations import ReservationSettings

from .endpoints import (
    PATIENT,
    serving,
)
from .ledger import make_regions
from .nodes import KEY, PREFILL


async def test_nobody_answers() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    client = ControlClient("127.0.0.1", port, PREFILL, settings=PATIENT)
    with pytest.raises(PeerLost, match=f"not connected to 127.0.0.1 port {port} yet"):
        _ = client.peer
    with pytest.raises(PeerLost, match=f"no decode node answers at 127.0.0.1 port {port}"):
        await client.run()
    client.close()


async def test_what_answers_is_no_decode_node() -> None:
    (listener,) = await bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    client = ControlClient("127.0.0.1", port, PREFILL, settings=PATIENT)

    async def answer() -> None:
        await anyio.wait_readable(listener)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(encode_frame({"magic": "tilert-pd", "layout_version": 10}))
            await anyio.wait_readable(sock)

    with listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            with pytest.raises(HandshakeRefused, match="give that node's dialect, tilert-pd"):
                await client.run()


async def test_an_address_that_is_taken_is_refused() -> None:
    listeners = await bind("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, control port {port}"):
        await bind("127.0.0.1", port)
    for listener in listeners:
        listener.close()


async def test_an_open_port_without_a_key_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for host, key in (("127.0.0.1", None), ("::1", None), ("::", KEY)):
        async with serving(host=host, key=key):
            pass
    assert caplog.text == ""
    async with serving(host="::"):
        pass
    assert "without a cluster key" in caplog.text
    assert "--cluster-key" in caplog.text


async def test_a_holder_is_told_of_a_failure_and_not_of_its_own_release() -> None:
    told: list[str] = []
    async with serving(reservation_settings=ReservationSettings(ttl=0.02)) as decode:
        released, expired = (decode.server.reserve(name, 1000) for name in ("a", "b"))
        released.on_failed = lambda: told.append("released")
        expired.on_failed = lambda: told.append("expired")
        released.release("left")
        with pytest.raises(GrantGone):
            await expired.wait()
        assert told == ["expired"]


async def test_landings_by_their_generation() -> None:
    async with serving() as decode:
        landing = decode.server.reserve("a1", 1000)
        assert decode.server.landings.get(landing.granted.generation) is landing
        with pytest.raises(OutOfOrder, match="has not landed"):
            landing.take()
        landing.renew()
        landing.release("left")
        landing.release("left")
        with pytest.raises(GrantGone):
            decode.server.landings.get(1)
        for index in range(10):
            decode.server.reserve(f"r{index}", 1000).release("left")
        assert decode.gauges() == (0, 0, 0, 0, 0)


def test_regions_are_named_as_a_transport_names_them() -> None:
    assert make_regions(2)[1] == LandingRegion(id=7, offset=1 << 20, nbytes=1 << 20)
