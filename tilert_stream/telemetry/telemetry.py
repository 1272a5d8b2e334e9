"""All that a server tells of its requests, as its app takes it: observers, and ``GET /metrics``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from anyio import to_thread
from starlette.routing import Route

from ..asgi.endpoint import Endpoint
from ..asgi.response import JSONBody
from ..errors import NotFound
from .meter import Meter

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from ..service import Service
    from .observer import Observer

__all__ = ("Telemetry",)


def _installed() -> bool:
    return find_spec("prometheus_client") is not None


if _installed():
    # Now, and not at the first scrape: an import would keep every stream waiting.
    import_module("tilert_stream.telemetry.exposition")


class Telemetry:
    """Made once a process, for one app.

    :param model: the served model's first name; no client's word.
    :param log: writes a line a request.
    :param vllm: metrics also under vLLM's names.
    :param worker: tells apart processes that share a port.
    """

    def __init__(
        self,
        model: str,
        *,
        log: Observer | None = None,
        vllm: bool = False,
        worker: str | None = None,
    ) -> None:
        self.meter = Meter()
        self._model = model
        self._log = log
        self._vllm = vllm
        self._worker = worker
        self._installed = _installed()

    def watch(self, service: Service[Any]) -> None:
        """Be told of ``service``'s requests."""
        service.observers.add(self.meter)
        if self._log is not None:
            service.observers.add(self._log)

    def route(self) -> Route:
        """``GET /metrics``."""
        return Route("/metrics", Endpoint(GET=self._answer))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._installed:
            raise NotFound(
                "/metrics needs the package 'prometheus-client', which is not installed here; the"
                " operator installs it with: pip install 'tilert-stream[metrics]'"
            )
        from .exposition import CONTENT_TYPE, ReadingCollector, render

        # The numbers are copied here, at one moment; the text, milliseconds of work, is not made on
        # the loop, where it would hold up every stream.
        collector = ReadingCollector(
            self.meter.reading(), model=self._model, worker=self._worker, vllm=self._vllm
        )
        text = await to_thread.run_sync(render, collector)
        headers = ((b"content-type", CONTENT_TYPE.encode()),)
        await JSONBody(text, headers=headers)(scope, receive, send)
