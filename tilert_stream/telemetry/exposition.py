"""A reading in, Prometheus' text format out, by prometheus-client.

The library's own metric classes are not used: each increment takes a lock, and they live in a
registry of the whole process. A custom collector builds the samples at a scrape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from .metrics import METRICS, PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric as Family

    from .histogram import Histogram
    from .meter import Reading
    from .metrics import Metric

__all__ = ("CONTENT_TYPE", "ReadingCollector", "render")

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class ReadingCollector:
    """A prometheus-client collector of one reading.

    :param model: the served model's first name: the label ``model``, in aliases ``model_name``.
    :param worker: tells apart processes that share a port; None where there is one.
    :param vllm: also under vLLM's names.
    """

    def __init__(
        self, reading: Reading, *, model: str, worker: str | None = None, vllm: bool = False
    ) -> None:
        self._reading = reading
        self._model = model
        self._worker = worker
        self._vllm = vllm

    def collect(self) -> Iterator[Family]:
        """Every metric, ours first."""
        for metric in METRICS:
            yield self._family(PREFIX + metric.name, metric, "model", metric.label)
        if self._vllm:
            for metric in METRICS:
                if metric.vllm is not None:
                    label = metric.vllm_label or metric.label
                    yield self._family(metric.vllm, metric, "model_name", label)

    def _family(self, name: str, metric: Metric, model_label: str, label: str | None) -> Family:
        labels = {model_label: self._model}
        if self._worker is not None:
            labels["worker"] = self._worker
        if metric.kind == "gauge":
            gauge = GaugeMetricFamily(name, metric.help, labels=list(labels))
            gauge.add_metric(list(labels.values()), self._reading.gauges[metric])
            return gauge
        if metric.kind == "histogram":
            return _histogram(name, metric.help, labels, self._reading.histograms[metric])
        names = [*labels, label] if label is not None else [*labels]
        counter = CounterMetricFamily(name, metric.help, labels=names)
        # A counter without a label is there from the start; one with it, once it has happened.
        counts = self._reading.counters[metric] or ({"": 0} if label is None else {})
        for value, count in counts.items():
            own = [value] if label is not None else []
            counter.add_metric([*labels.values(), *own], count)
        return counter


def _histogram(
    name: str, documentation: str, labels: Mapping[str, str], values: Histogram
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, documentation, labels=list(labels))
    bounds = [*map(str, values.bounds), "+Inf"]
    family.add_metric(
        list(labels.values()), list(zip(bounds, values.cumulative(), strict=True)), values.sum
    )
    return family


def render(collector: ReadingCollector) -> bytes:
    """The text of a scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
