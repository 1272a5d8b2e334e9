"""An app and its options in, served on the chosen event loop until a signal; the exit code out."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import anyio

from tilert_stream.errors import ConfigError, EngineDied, TilertStreamError
from tilert_stream.http import Server, ServerSettings, run_until_signalled

from .collection import collect_between_requests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anyio.abc import TaskStatus
    from starlette.types import ASGIApp

    from tilert_stream.config.request import LimitOptions
    from tilert_stream.config.server import HostOptions, HTTPOptions, LogOptions
    from tilert_stream.http.scope import Address
    from tilert_stream.service import Service

__all__ = ("begin_log", "check_host", "client_settings", "node_settings", "serve_until_signalled")

logger = logging.getLogger(__name__)

ENGINE_DIED: Final = 70
"""Exit code (EX_SOFTWARE) after an engine's death: a supervisor should start us again."""


def begin_log(config: LogOptions) -> None:
    """Log to stderr, from the level that was chosen on."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )


def check_host(config: HostOptions) -> None:
    """Whether the chosen event loop is there, before a model is loaded for nothing.

    :raises ~tilert_stream.errors.ConfigError: it is not installed.
    """
    if config.backend == "trio" and find_spec("trio") is None:
        raise ConfigError(
            "backend is 'trio', and the package 'trio' is not installed; install it with:"
            " pip install 'tilert-stream[trio]', or use the asyncio backend.",
            param="backend",
        )


def node_settings(config: HostOptions, *, port: int, access_log: bool) -> ServerSettings:
    """Settings of a server that only routers talk to."""
    return ServerSettings(
        host=config.host,
        port=port,
        ssl_certfile=_text(config.ssl_certfile),
        ssl_keyfile=_text(config.ssl_keyfile),
        access_log=access_log,
    )


def client_settings(
    listen: HostOptions,
    http: HTTPOptions,
    limits: LimitOptions,
    *,
    port: int,
    uds: str | None,
    access_log: bool,
) -> ServerSettings:
    """Settings of a server that clients talk to."""
    return ServerSettings(
        host=listen.host,
        port=port,
        uds=uds,
        ssl_certfile=_text(listen.ssl_certfile),
        ssl_keyfile=_text(listen.ssl_keyfile),
        max_connections=limits.max_connections,
        max_header_bytes=limits.max_header_bytes,
        max_body_bytes=limits.max_body_bytes,
        header_timeout=http.header_timeout,
        body_timeout=http.body_timeout,
        idle_timeout=http.keep_alive_timeout,
        write_stall_timeout=http.write_stall_timeout,
        drain_delay=limits.drain_delay,
        drain_timeout=limits.drain_timeout,
        allow_half_close=http.allow_half_close,
        access_log=access_log,
    )


def serve_until_signalled(
    app: ASGIApp,
    settings: ServerSettings,
    host: HostOptions,
    service: Service[Any],
    *,
    on_ready: Callable[[Address], None],
) -> int:
    """Serve on the chosen event loop until a signal, or until an engine dies; the exit code.

    :param service: the app's own; it drains with the server, and tells of an engine's death.
    :param on_ready: called once the server listens.
    :raises ~tilert_stream.errors.TilertStreamError: as ``Server.serve``.
    """
    options: dict[str, Any] = {}
    if host.backend == "asyncio":
        options["use_uvloop"] = host.uvloop and find_spec("uvloop") is not None

    async def serve() -> int:
        server = Server(app, settings, on_drain=service.drain)
        return await _serve(server, service, on_ready)

    return anyio.run(serve, backend=host.backend, backend_options=options)


async def _serve(server: Server, service: Service[Any], on_ready: Callable[[Address], None]) -> int:
    failure: TilertStreamError | None = None
    async with anyio.create_task_group() as tasks:

        async def serve(*, task_status: TaskStatus[list[Address]]) -> None:
            await run_until_signalled(server, task_status=task_status)
            tasks.cancel_scope.cancel()

        try:
            addresses = await tasks.start(serve)
        except TilertStreamError as error:  # raised before anything was served
            failure = error
        else:
            on_ready(addresses[0])
            collect_between_requests(service.observers)
            failure = await service.died()
            logger.critical("%s", failure.message)
            server.drain(at_once=True)
    if isinstance(failure, EngineDied):
        return ENGINE_DIED
    if failure is not None:
        raise failure
    return 0


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
