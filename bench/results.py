"""Figures of all rounds: medians, paired comparisons, and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("Results", "Sample")


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one round."""

    round: int
    host: str
    scenario: str
    """``busy 64×4``: the load, its streams, its tokens a wake."""
    metric: str
    value: float


@dataclass(slots=True)
class Results:
    """All that one run has measured."""

    about: dict[str, str] = field(default_factory=dict[str, str])
    """Versions and options."""
    samples: list[Sample] = field(default_factory=list[Sample])

    def add(self, number: int, host: str, scenario: str, figures: dict[str, float]) -> None:
        """Take in the figures of one scenario."""
        self.samples += [Sample(number, host, scenario, *figure) for figure in figures.items()]

    def rounds(self, host: str, scenario: str, metric: str) -> dict[int, float]:
        """A figure by round; empty where it was not measured."""
        wanted = (host, scenario, metric)
        return {
            sample.round: sample.value
            for sample in self.samples
            if (sample.host, sample.scenario, sample.metric) == wanted
        }

    def median(self, host: str, scenario: str, metric: str) -> float | None:
        """The middle one of a figure's rounds."""
        values = self.rounds(host, scenario, metric)
        return median(values.values()) if values else None

    def ratio(
        self, host: str, base: str, scenario: str, metric: str, *, to: str | None = None
    ) -> float | None:
        """The median of the ratios inside each round, which a busy machine disturbs less.

        :param to: the base's scenario, where it is another.
        """
        pairs = self._pairs((host, scenario, metric), (base, to or scenario, metric))
        return median(ours / theirs for ours, theirs in pairs) if pairs else None

    def excess(self, host: str, base: str, scenario: str, metric: str) -> float | None:
        """The median of the differences inside each round."""
        pairs = self._pairs((host, scenario, metric), (base, scenario, metric))
        return median(ours - theirs for ours, theirs in pairs) if pairs else None

    def _pairs(
        self, left: tuple[str, str, str], right: tuple[str, str, str]
    ) -> list[tuple[float, float]]:
        ours, theirs = self.rounds(*left), self.rounds(*right)
        return [(ours[number], theirs[number]) for number in ours.keys() & theirs.keys()]

    def hosts(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(sample.host for sample in self.samples))

    def scenarios(self, metric: str) -> list[str]:
        """Those that give ``metric``, in the order in which they were measured."""
        found = (sample.scenario for sample in self.samples if sample.metric == metric)
        return list(dict.fromkeys(found))

    def save(self, path: Path) -> None:
        """Write all figures as JSON: host, scenario, figure, its value in each round."""
        tree: dict[str, dict[str, dict[str, list[float]]]] = {}
        for sample in self.samples:
            figures = tree.setdefault(sample.host, {}).setdefault(sample.scenario, {})
            figures.setdefault(sample.metric, []).append(round(sample.value, 2))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps({"about": self.about, "figures": tree}) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what ``save`` wrote."""
        read = orjson.loads(path.read_bytes())
        return cls(
            read["about"],
            [
                Sample(number, host, scenario, metric, value)
                for host, scenarios in read["figures"].items()
                for scenario, figures in scenarios.items()
                for metric, values in figures.items()
                for number, value in enumerate(values)
            ],
        )
