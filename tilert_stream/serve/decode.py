"""A decode node: configuration in, a model loaded, control port and HTTP served until a signal."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from tilert_engine.decode_worker import DecodeWorker
from tilert_engine.layouts.landed import LandingDecode
from tilert_stream.nodes.decode_app import DecodeApp
from tilert_stream.nodes.decode_node import DecodeNode
from tilert_stream.nodes.device_memory import landing_device
from tilert_stream.nodes.first_token import FirstToken
from tilert_stream.nodes.landing_port import LandingPort
from tilert_stream.nodes.tilert_app import TilertApp
from tilert_stream.nodes.tilert_node import TilertNode
from tilert_stream.nodes.tilert_port import TilertPort
from tilert_stream.pipeline import Pipeline
from tilert_stream.service import Service
from tilert_stream.stages.decode import Decode
from tilert_stream.stages.kv_import import ImportKV
from tilert_stream.stages.reserve import Reserve
from tilert_stream.time_limits import TimeLimits
from tilert_transports.control.auth import RequestVerifier
from tilert_transports.control.regions import SPARE_REGIONS

from .announcement import announce_node, bracketed
from .cluster_key import cluster_key
from .hosting import begin_log, check_host, node_settings, serve_until_signalled
from .models import load_model
from .telemetry import make_telemetry

if TYPE_CHECKING:
    from tilert_stream.config import DecodeConfig
    from tilert_stream.events import TokenBatch
    from tilert_stream.http.scope import Address

    from .models import Model

__all__ = ("build_decode", "build_tilert", "run")

SILENCE: float = 600.0
"""Seconds without a token after which an engine is taken for stuck, as TileRT has it."""


def build_decode(config: DecodeConfig, model: Model) -> tuple[DecodeApp, LandingPort]:
    """A decode node's ASGI app and its control port, in our own dialect; nothing runs yet.

    :raises ~tilert_stream.errors.ConfigError: an option is wrong.
    """
    key = cluster_key(config)
    engine = LandingDecode(model.decode, model.layout)
    worker: DecodeWorker[Any] = DecodeWorker(engine)
    port = LandingPort(
        model.layout,
        transport=config.transport,
        slots=model.decode.slots,
        regions=config.regions or model.decode.slots + SPARE_REGIONS,
        host=config.host,
        port=config.ctrl_port,
        key=key,
        ttl=config.reservation_ttl,
        advertise=config.advertise_host,
        device=landing_device(config.landing_memory, config.device, model.layout),
        prepare=engine.landing,
    )
    node = DecodeNode(worker, port.reserve, port.view, port.refuse)
    app = DecodeApp(
        node,
        _service(config, node, worker),
        layout=model.layout.describe(),
        eos_ids=model.front.card.eos_ids,
        port=port,
        verifier=None if key is None else RequestVerifier(key),
        telemetry=make_telemetry(config, model.front.card),
    )
    return app, port


def build_tilert(config: DecodeConfig, model: Model) -> tuple[TilertApp, TilertPort]:
    """The same for TileRT's stock prefill connector and routers.

    :raises ~tilert_stream.errors.ConfigError: an option is wrong, or the dialect has no such
        transport or model.
    """
    key = cluster_key(config)
    engine = LandingDecode(model.decode, model.layout)
    port = TilertPort(
        model.layout,
        transport=config.transport,
        slots=model.decode.slots,
        regions=config.regions or model.decode.slots + SPARE_REGIONS,
        host=config.host,
        port=config.ctrl_port,
        timeout=config.kv_timeout,
        advertise=config.advertise_host,
        device=landing_device(config.landing_memory, config.device, model.layout),
        prepare=engine.landing,
    )
    worker: DecodeWorker[Any] = DecodeWorker(engine)
    node = TilertNode(worker, port.arrived, port.discard, port.decline, port.view)
    app = TilertApp(
        node,
        _service(config, node, worker),
        eos_ids=model.front.card.eos_ids,
        port=port,
        verifier=None if key is None else RequestVerifier(key),
        telemetry=make_telemetry(config, model.front.card),
    )
    return app, port


def _service(
    config: DecodeConfig, node: DecodeNode[Any] | TilertNode[Any], worker: DecodeWorker[Any]
) -> Service[TokenBatch]:
    pipeline = (
        Pipeline().then(Reserve(node)).then(FirstToken()).then(ImportKV(node)).then(Decode(node))
    )
    limits = TimeLimits(
        prefill=inf, kv=config.kv_timeout, first_token=inf, inter_token=SILENCE, total=inf
    )
    return Service(pipeline, workers=(worker,), time_limits=limits)


def run(config: DecodeConfig) -> int:
    """Serve until a signal; the exit code.

    :raises ~tilert_stream.errors.ConfigError: the model cannot be served, or as ``build_decode``.
    :raises ~tilert_stream.errors.TilertStreamError: as ``Server.serve``.
    """
    begin_log(config)
    check_host(config)
    settings = node_settings(config, port=config.http_port, access_log=config.access_log)
    cluster_key(config)  # a wrong one is told before a model is loaded
    model = load_model(
        config,
        slots=config.slots,
        ar_steps=config.ar_steps,
        senders=config.senders,
        weights=config.model_weights_dir,
        prefills=False,
    )
    build = build_tilert if config.pd_dialect == "tilert-pd" else build_decode
    app, port = build(config, model)

    def announce(address: Address) -> None:
        where = f"{bracketed(address[0])}:{port.port}:{address[1]}"
        announce_node("Decoding", f"--decode {where}")

    return serve_until_signalled(app, settings, config, app.service, on_ready=announce)
