"""Everything in one process: configuration in, a model loaded, an app served until a signal.

``build_app`` alone is what an existing ASGI app embeds.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tilert_stream.asgi import App
from tilert_stream.errors import ConfigError
from tilert_stream.nodes.local import local_service

from .announcement import announce
from .front import choose
from .hosting import begin_log, check_host, client_settings, serve_until_signalled
from .models import load_model
from .request_options import (
    capable,
    check_stages,
    choose_output,
    place_stages,
    reasoning_fields,
    time_limits,
)
from .telemetry import make_telemetry

if TYPE_CHECKING:
    from tilert_stream.config import ServeConfig

__all__ = ("build_app", "run")


def build_app(config: ServeConfig) -> App:
    """The ASGI app that ``config`` describes, its model loaded; nothing runs yet.

    :raises ~tilert_stream.errors.ConfigError: the model cannot be served.
    :raises ~tilert_stream.errors.PipelineError: a stage is not found, or cannot stand there.
    """
    check_stages(config)
    config = replace(config, model=choose(config.model))
    model = load_model(config, slots=config.slots, ar_steps=config.ar_steps)
    front = model.front
    card = capable(front.card, model.prefill, model.decode)
    parser, card = choose_output(config, card)
    service = local_service(
        model.prefill,
        model.decode,
        front.tokenizer,
        parser=parser,
        queue_timeout=config.queue_timeout,
        max_queue=config.max_queue,
        coalesce=config.coalesce_ms / 1000,
        time_limits=time_limits(config),
    )
    place_stages(service, config)
    return App(
        service,
        card,
        api_keys=config.api_keys,
        max_body_bytes=config.max_body_bytes,
        done_after_error=config.done_after_error,
        reasoning_fields=reasoning_fields(config),
        heartbeat=config.heartbeat,
        cors_origins=config.cors_origins,
        telemetry=make_telemetry(config, card),
    )


def run(config: ServeConfig) -> int:
    """Serve until a signal; the exit code.

    :raises ~tilert_stream.errors.ConfigError: the backend is not installed, or as ``build_app``.
    :raises ~tilert_stream.errors.TilertStreamError: as ``build_app`` and ``Server.serve``.
    """
    begin_log(config)
    if config.workers > 1:
        raise ConfigError(
            f"workers is {config.workers}; it must be 1 where the engine runs in this process: its"
            " decode slots belong to one process, and each worker would load the model once more."
            " Raise slots to decode more requests at once.",
            param="workers",
        )
    check_host(config)
    settings = client_settings(
        config, config, config, port=config.port, uds=config.uds, access_log=config.access_log
    )
    app = build_app(config)
    if config.print_pipeline:
        sys.stdout.write(f"{app.service.pipeline}\n")
        return 0
    return serve_until_signalled(
        app,
        settings,
        config,
        app.service,
        on_ready=lambda address: announce(
            address,
            app.card,
            secure=settings.ssl_certfile is not None,
            keyed=bool(config.api_keys),
        ),
    )
