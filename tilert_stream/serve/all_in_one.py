"""Everything in one process: configuration in, a model loaded, an app served until a signal.

``build_app`` alone is what an existing ASGI app embeds.
"""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import anyio

from tilert_stream.asgi import App
from tilert_stream.errors import ConfigError, EngineDied, TilertStreamError
from tilert_stream.http import Server, ServerSettings, run_until_signalled
from tilert_stream.link import make_link
from tilert_stream.nodes.local import local_service
from tilert_stream.time_limits import TimeLimits

from .announcement import announce
from .models import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import TaskStatus

    from tilert_stream.config import ServeConfig
    from tilert_stream.http.scope import Address

__all__ = ("build_app", "run")

logger = logging.getLogger(__name__)

ENGINE_DIED: Final = 70
"""Exit code (EX_SOFTWARE) after an engine's death: a supervisor should start us again."""


def build_app(config: ServeConfig) -> App:
    """The ASGI app that ``config`` describes, its model loaded; nothing runs yet.

    :raises ~tilert_stream.errors.ConfigError: the model cannot be served.
    :raises ~tilert_stream.errors.PipelineError: a stage is not found, or cannot stand there.
    """
    for stage in config.stages:
        make_link(stage.use)  # a wrong name is told before a model is loaded
    model = load_model(config)
    service = local_service(
        model.prefill,
        model.decode,
        model.tokenizer,
        queue_timeout=config.queue_timeout,
        max_queue=config.max_queue,
        coalesce=config.coalesce_ms / 1000,
        time_limits=TimeLimits(
            prefill=config.prefill_timeout,
            kv=config.kv_timeout,
            first_token=config.first_token_timeout,
            inter_token=config.inter_token_timeout,
            total=config.total_timeout,
        ),
    )
    for stage in config.stages:
        service.pipeline = service.pipeline.insert(
            stage.use, where=stage.where, anchor=stage.anchor
        )
    return App(
        service,
        model.card,
        api_keys=config.api_keys,
        max_body_bytes=config.max_body_bytes,
        done_after_error=config.done_after_error,
        heartbeat=config.heartbeat,
        cors_origins=config.cors_origins,
    )


def run(config: ServeConfig) -> int:
    """Serve until a signal; the exit code.

    :raises ~tilert_stream.errors.ConfigError: the backend is not installed, or as ``build_app``.
    :raises ~tilert_stream.errors.TilertStreamError: as ``build_app`` and ``Server.serve``.
    """
    logging.basicConfig(
        level=config.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    if config.workers > 1:
        raise ConfigError(
            f"workers is {config.workers}; it must be 1 where the engine runs in this process: its"
            " decode slots belong to one process, and each worker would load the model once more."
            " Raise slots to decode more requests at once.",
            param="workers",
        )
    if config.backend == "trio" and find_spec("trio") is None:
        raise ConfigError(
            "backend is 'trio', and the package 'trio' is not installed; install it with:"
            " pip install 'tilert-stream[trio]', or use the asyncio backend.",
            param="backend",
        )
    settings = _settings(config)
    app = build_app(config)
    if config.print_pipeline:
        sys.stdout.write(f"{app.service.pipeline}\n")
        return 0
    options: dict[str, Any] = {}
    if config.backend == "asyncio":
        options["use_uvloop"] = config.uvloop and find_spec("uvloop") is not None
    return anyio.run(_serve, app, settings, backend=config.backend, backend_options=options)


async def _serve(app: App, settings: ServerSettings) -> int:
    server = Server(app, settings, on_drain=app.service.drain)
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
            announce(addresses[0], app.card, secure=settings.ssl_certfile is not None)
            failure = await app.service.died()
            logger.critical("%s", failure.message)
            server.drain(at_once=True)
    if isinstance(failure, EngineDied):
        return ENGINE_DIED
    if failure is not None:
        raise failure
    return 0


def _settings(config: ServeConfig) -> ServerSettings:
    return ServerSettings(
        host=config.host,
        port=config.port,
        uds=config.uds,
        ssl_certfile=_text(config.ssl_certfile),
        ssl_keyfile=_text(config.ssl_keyfile),
        max_connections=config.max_connections,
        max_header_bytes=config.max_header_bytes,
        max_body_bytes=config.max_body_bytes,
        header_timeout=config.header_timeout,
        body_timeout=config.body_timeout,
        idle_timeout=config.keep_alive_timeout,
        write_stall_timeout=config.write_stall_timeout,
        drain_delay=config.drain_delay,
        drain_timeout=config.drain_timeout,
        allow_half_close=config.allow_half_close,
        access_log=config.access_log,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
