"""Bar charts as SVG, for the docs: a group of bars a host, a bar a load."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("bars",)

COLORS: Final = ("#7a8fc9", "#5f9f68", "#c99a3f", "#b5676b")
LEFT, BAR, GAP, WIDTH, HEAD = 150, 14, 12, 720, 64
STYLE: Final = (
    "text{fill:#333}.l{fill:#777}@media (prefers-color-scheme:dark){text{fill:#ddd}.l{fill:#999}}"
)


def bars(
    title: str, hosts: Sequence[str], loads: Sequence[str], values: Sequence[Sequence[float | None]]
) -> str:
    """Horizontal bars on one scale that begins at 0.

    :param values: for each host the value of each load; None leaves the bar out.
    """
    longest = max((value for row in values for value in row if value is not None), default=1)
    scale = (WIDTH - LEFT - 70) / longest
    group = BAR * len(loads) + GAP
    height = HEAD + group * len(hosts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' font-family="system-ui, sans-serif" font-size="13" role="img"'
        f' aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text x="12" y="22" font-size="15">{escape(title)}</text>',
    ]
    for place, load in enumerate(loads):
        x = LEFT + 130 * place
        parts.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{COLORS[place]}"/>')
        parts.append(f'<text class="l" x="{x + 18}" y="45">{escape(load)}</text>')
    for row, (host, figures) in enumerate(zip(hosts, values, strict=True)):
        top = HEAD + group * row
        middle = top + BAR * len(loads) / 2 + 4
        parts.append(f'<text x="{LEFT - 10}" y="{middle:g}" text-anchor="end">{host}</text>')
        for place, value in enumerate(figures):
            if value is None:
                continue
            y, length = top + BAR * place, value * scale
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 2}"'
                f' fill="{COLORS[place]}"/>'
            )
            shown = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
            parts.append(
                f'<text class="l" x="{LEFT + length + 6:.1f}" y="{y + 11}" font-size="11">'
                f"{shown}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])
