"""A router: configuration in, an OpenAI-compatible API served until a signal; no engine here."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tilert_stream.asgi import App
from tilert_stream.cluster.address import NodeAddress
from tilert_stream.errors import ConfigError
from tilert_stream.http.client import Origin
from tilert_stream.http.supervisor import Supervisor
from tilert_stream.nodes.router import Nodes, pool_status_route, remote_service
from tilert_stream.nodes.shared_capabilities import shared_capabilities

from .announcement import announce
from .cluster_key import cluster_key
from .front import load_front
from .hosting import begin_log, check_host, client_settings, serve_until_signalled
from .request_options import (
    ENGINE_CAPABILITIES,
    check_stages,
    choose_output,
    place_stages,
    reasoning_fields,
    time_limits,
)
from .telemetry import make_telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilert_stream.config import RouterConfig
    from tilert_stream.http import ServerSettings
    from tilert_stream.http.scope import Address

__all__ = ("build_router", "run")


def build_router(config: RouterConfig) -> App:
    """The ASGI app that ``config`` describes; nothing runs yet.

    :raises ~tilert_stream.errors.ConfigError: a node's address is wrong or none is given, or the
        model's tokenizer cannot be read.
    :raises ~tilert_stream.errors.PipelineError: a stage is not found, or cannot stand there.
    """
    check_stages(config)
    for name, given in (("prefill", config.prefill_nodes), ("decode", config.decode_nodes)):
        if not given:
            raise ConfigError(
                f"a router needs a {name} node: give --{name} once or more", param=name
            )
    prefill = [Origin.parse(url, label="the prefill node") for url in config.prefill_nodes]
    decode = [NodeAddress.parse(text) for text in config.decode_nodes]
    key = cluster_key(config)
    front = load_front(config)
    nodes = Nodes.of(
        prefill,
        decode,
        prefill_model=config.prefill_model or front.card.names[0],
        prefill_api_key=config.prefill_api_key,
        sign=None if key is None else key.sign,
        prefill_timeout=config.prefill_timeout,
        kv_timeout=config.kv_timeout,
        queue_timeout=config.queue_timeout,
        max_queue=config.max_queue,
    )
    card = replace(front.card, capabilities=ENGINE_CAPABILITIES)
    parser, card = choose_output(config, card)
    service = remote_service(
        nodes,
        front.tokenizer,
        parser=parser,
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
        routes=(pool_status_route(nodes),),
        shared=partial(shared_capabilities, nodes.decode),
        telemetry=make_telemetry(config, card, shared_port=config.workers > 1),
    )


def run(config: RouterConfig) -> int:
    """Serve until a signal; the exit code.

    :raises ~tilert_stream.errors.ConfigError: as ``build_router``.
    :raises ~tilert_stream.errors.TilertStreamError: as ``Server.serve``.
    """
    begin_log(config)
    check_host(config)
    settings = client_settings(
        config, config, config, port=config.port, uds=config.uds, access_log=config.access_log
    )
    app = build_router(config)  # what is wrong is told here, and not by every worker
    if config.print_pipeline:
        sys.stdout.write(f"{app.service.pipeline}\n")
        return 0
    say = partial(
        announce,
        card=app.card,
        secure=settings.ssl_certfile is not None,
        keyed=bool(config.api_keys),
    )
    if config.workers == 1:
        return _serve(app, config, settings, say)
    return Supervisor(
        partial(_work, config),
        settings,
        config.workers,
        on_ready=lambda port, _pids: say((config.host, port)),
    ).serve()


def _work(config: RouterConfig, settings: ServerSettings, ready: Callable[[], None]) -> int:
    """One of several workers."""
    begin_log(config)
    return _serve(build_router(config), config, settings, lambda _address: ready())


def _serve(
    app: App, config: RouterConfig, settings: ServerSettings, on_ready: Callable[[Address], None]
) -> int:
    return serve_until_signalled(app, settings, config, app.service, on_ready=on_ready)
