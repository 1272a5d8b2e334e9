"""A prefill node: configuration in, a model loaded, its HTTP served until a signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilert_engine.prefill_worker import PrefillWorker
from tilert_stream.nodes.prefill_app import PrefillApp
from tilert_stream.nodes.prefill_node import HandOverDesk, PrefillAndHandOver
from tilert_stream.pipeline import Pipeline
from tilert_stream.service import Service

from .announcement import announce_node, bracketed
from .cluster_key import cluster_key
from .hosting import begin_log, check_host, node_settings, serve_until_signalled
from .models import load_model
from .request_options import capable
from .telemetry import make_telemetry

if TYPE_CHECKING:
    from tilert_stream.config import PrefillConfig
    from tilert_stream.http.scope import Address

    from .models import Model

__all__ = ("build_prefill", "run")


def build_prefill(config: PrefillConfig, model: Model) -> PrefillApp:
    """The ASGI app that ``config`` describes; nothing runs yet.

    :raises ~tilert_stream.errors.ConfigError: an option is wrong.
    """
    key = cluster_key(config)
    worker: PrefillWorker[Any] = PrefillWorker(model.prefill)
    card = capable(model.front.card, model.prefill)
    telemetry = make_telemetry(config, card)
    desk = HandOverDesk(
        model.layout,
        transport=config.transport,
        host=config.host,
        stagings=config.stagings,
        timeout=config.send_timeout,
        key=key,
        on_delivered=telemetry.meter.delivered,
    )
    pipeline = Pipeline().then(PrefillAndHandOver(worker, desk))
    return PrefillApp(
        Service(pipeline, workers=(worker,)),
        card,
        model.front.tokenizer,
        desk,
        api_keys=config.api_keys,
        telemetry=telemetry,
    )


def run(config: PrefillConfig) -> int:
    """Serve until a signal; the exit code.

    :raises ~tilert_stream.errors.ConfigError: the model cannot be served, or as ``build_prefill``.
    :raises ~tilert_stream.errors.TilertStreamError: as ``Server.serve``.
    """
    begin_log(config)
    check_host(config)
    settings = node_settings(config, port=config.port, access_log=config.access_log)
    cluster_key(config)  # a wrong one is told before a model is loaded
    app = build_prefill(config, load_model(config))

    def announce(address: Address) -> None:
        where = f"http://{bracketed(address[0])}:{address[1]}"
        announce_node("Prefilling", f"--prefill {where}")

    return serve_until_signalled(app, settings, config, app.service, on_ready=announce)
