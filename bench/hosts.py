"""Every host that is measured, by name; each runs in a process of its own.

    python -m bench.hosts NAME BOARD [PROFILE]

In: the board's path; a byte on standard input opens the gate, its end ends the process. Out: the
port, one line. The app and its engine are the same under every host but the floor.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import uvloop
from hypercorn.asyncio import (
    serve as hypercorn_serve,  # pyright: ignore[reportUnknownVariableType]  # a bare dict in its types
)
from hypercorn.config import Config as HypercornConfig
from uvicorn import Config as UvicornConfig
from uvicorn import Server as UvicornServer

from tilert_engine.scripted import ScriptedDecode, ScriptedPrefill
from tilert_stream.http import Server, ServerSettings
from tilert_stream.testing.apps import ScriptedApp

from .board import STREAMS, Board
from .floor import Floor
from .script import Gate, make_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_engine.scripted import Script

__all__ = ("FLOORS", "HOSTS", "OURS", "PEERS")

MAX_TOKENS: Final = 65_536
BACKLOG: Final = 2048


def _announce(port: int) -> None:
    # What has been imported is nobody's garbage: a collection would only measure the imports.
    gc.collect()
    gc.freeze()
    print(port, flush=True)


def _listening() -> socket.socket:
    """A socket for the hosts that take one; who connects early waits in its backlog."""
    # asyncio turns Nagle's algorithm off only where the protocol is named.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(BACKLOG)
    listener.settimeout(0)
    return listener


def _app(script: Script) -> ScriptedApp:
    return ScriptedApp(script, slots=STREAMS, max_seq_len=MAX_TOKENS, max_queue=STREAMS)


async def _serve_floor(script: Script) -> None:
    floor = Floor(
        ScriptedPrefill(script, max_seq_len=MAX_TOKENS),
        ScriptedDecode(script, slots=STREAMS, max_seq_len=MAX_TOKENS),
    )
    listener = _listening()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(floor.connection, sock=listener, backlog=BACKLOG)
    _announce(listener.getsockname()[1])
    await server.serve_forever()


async def _serve_ours(script: Script) -> None:
    settings = ServerSettings(port=0, backlog=BACKLOG, access_log=False)
    async with anyio.create_task_group() as tasks:
        addresses = await tasks.start(Server(_app(script), settings).serve)
        _announce(addresses[0][1])


async def _serve_hypercorn(script: Script) -> None:
    listener = _listening()
    config = HypercornConfig()
    config.bind = [f"fd://{listener.fileno()}"]
    config.accesslog = config.errorlog = None
    config.backlog = BACKLOG
    _announce(listener.getsockname()[1])
    await hypercorn_serve(_app(script), config)  # type: ignore[arg-type]  # its Scope is narrower than ASGI's


async def _serve_uvicorn(script: Script, http: str) -> None:
    listener = _listening()
    config = UvicornConfig(
        _app(script), http=http, lifespan="on", log_level="error", access_log=False
    )
    _announce(listener.getsockname()[1])
    await UvicornServer(config).serve(sockets=[listener])


def _floor_asyncio(script: Script) -> None:
    asyncio.run(_serve_floor(script))


def _floor_uvloop(script: Script) -> None:
    uvloop.run(_serve_floor(script))


def _ours_asyncio(script: Script) -> None:
    anyio.run(_serve_ours, script)


def _ours_uvloop(script: Script) -> None:
    anyio.run(_serve_ours, script, backend_options={"use_uvloop": True})


def _ours_trio(script: Script) -> None:
    anyio.run(_serve_ours, script, backend="trio")


def _uvicorn_h11(script: Script) -> None:
    asyncio.run(_serve_uvicorn(script, "h11"))


def _uvicorn_httptools(script: Script) -> None:
    asyncio.run(_serve_uvicorn(script, "httptools"))


def _uvicorn_uvloop(script: Script) -> None:
    uvloop.run(_serve_uvicorn(script, "httptools"))


def _hypercorn(script: Script) -> None:
    asyncio.run(_serve_hypercorn(script))


HOSTS: Final[dict[str, Callable[[Script], None]]] = {
    "floor": _floor_asyncio,
    "floor-uvloop": _floor_uvloop,
    "ours": _ours_asyncio,
    "ours-uvloop": _ours_uvloop,
    "ours-trio": _ours_trio,
    "uvicorn-h11": _uvicorn_h11,
    "uvicorn-httptools": _uvicorn_httptools,
    "uvicorn-uvloop": _uvicorn_uvloop,
    "hypercorn": _hypercorn,
}
FLOORS: Final = ("floor", "floor-uvloop")
OURS: Final = ("ours", "ours-uvloop", "ours-trio")
PEERS: Final = ("uvicorn-h11", "uvicorn-httptools", "uvicorn-uvloop", "hypercorn")


def main() -> None:
    name, path, *profile = sys.argv[1:]
    if profile:
        from .profile import profile_on_signal

        profile_on_signal(Path(profile[0]))
    HOSTS[name](make_script(Board(Path(path)), Gate()))


if __name__ == "__main__":
    main()
