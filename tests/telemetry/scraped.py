"""A scrape, read as Prometheus reads it."""

from __future__ import annotations

from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[str, float]


def families(text: bytes) -> dict[str, Family]:
    """By name, a counter's without ``_total``."""
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def samples(text: bytes) -> Samples:
    """Each sample by its name and those of its labels that are not the model's.

    Of a histogram's buckets only those that are more than the one before.
    """
    found: Samples = {}
    for family in families(text).values():
        below = 0.0
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model", "model_name")}
            bound = labels.get("le")
            if bound is not None:
                rises, below = sample.value > below, sample.value
                if not rises:
                    continue
            inner = ",".join(f"{key}={value}" for key, value in labels.items())
            found[sample.name + (f"{{{inner}}}" if inner else "")] = sample.value
    return found
