"""A drain and the clients that have connected to a TLS server without a word."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import trustme

from tilert_stream.http import ServerSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tests.http.conftest import Serving


async def test_drain_does_not_wait_for_a_handshake_that_nobody_began(
    serving: Serving, echo: ASGIApp, tmp_path: Path
) -> None:
    pem = tmp_path / "server.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    settings = ServerSettings(port=0, lifespan="off", ssl_certfile=str(pem), header_timeout=None)
    async with serving(echo, settings) as running:
        taken_in = await running.connect()
        while not running.server.connections:
            await anyio.lowlevel.checkpoint()
        in_the_backlog = await running.connect()
        running.server.drain()
        for client in (taken_in, in_the_backlog):
            with suppress(ConnectionResetError):
                assert await client.rest() == b""
