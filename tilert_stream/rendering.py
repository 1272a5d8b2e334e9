"""A pipeline as text: who runs where, and what travels between."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from .link import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .link import Link

__all__ = ("render",)


def render(links: Sequence[Link]) -> str:
    """One line a stage, grouped by the task that runs it; what another process does has an arrow.

    ::

    producer task
      reserve       GenerateRequest → Reserved  ⇢ decode 10.0.0.2:5557
      decode        Reserved → TokenBatch  ⇢ decode 10.0.0.2:5557
    ══ mailbox
    writer task, fused
      detokenize    TokenBatch → TextDelta
    """
    if not links:
        return "(an empty pipeline)"
    width = max(len(link.name) for link in links)
    lines: list[str] = []
    for (title, _), group in groupby(_placed(links), key=lambda placed: placed[:2]):
        if title == "producer task":
            lines.append(title)
        elif lines[0] == "producer task" and "══ mailbox" not in lines:
            lines += ["══ mailbox", title]
        else:
            lines += ["══ channel", title]
        lines += [_line(link, width) for *_, link in group]
    return "\n".join(lines)


def _line(link: Link, width: int) -> str:
    away = f"  ⇢ {link.where}" if link.where else ""
    return f"  {link.name:<{width}}  {link.takes} → {link.gives}{away}"


def _placed(links: Sequence[Link]) -> list[tuple[str, int, Link]]:
    """Each link with the title and the number of the task that runs it."""
    awaiting = any(link.kind is Kind.STAGE for link in links)
    title, number = ("pump task, fused" if awaiting else "writer task, fused"), 0
    placed: list[tuple[str, int, Link]] = []
    for link in links:
        if link.kind in (Kind.STEP, Kind.SOURCE):
            placed.append(("producer task", -1, link))
            continue
        if link.kind is Kind.STAGE:
            number += 1
            title = f"task of {link.name}"
        placed.append((title, number, link))
    return placed
