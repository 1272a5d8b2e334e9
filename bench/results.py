"""Figures of all rounds: medians, paired comparisons, and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable
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

    def paired(
        self,
        host: str,
        base: str,
        scenario: str,
        metric: str,
        compare: Callable[[float, float], float],
    ) -> float | None:
        """The median of a comparison made round by round, which a busy machine disturbs less."""
        ours = self.rounds(host, scenario, metric)
        theirs = self.rounds(base, scenario, metric)
        both = ours.keys() & theirs.keys()
        return median(compare(ours[n], theirs[n]) for n in both) if both else None

    def hosts(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(sample.host for sample in self.samples))

    def scenarios(self, metric: str) -> list[str]:
        """Those that give ``metric``, in the order in which they were measured."""
        found = (sample.scenario for sample in self.samples if sample.metric == metric)
        return list(dict.fromkeys(found))

    def save(self, path: Path) -> None:
        """Write all figures as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what ``save`` wrote."""
        read = orjson.loads(path.read_bytes())
        return cls(read["about"], [Sample(**sample) for sample in read["samples"]])
