"""A training's ``loss.json`` in, a picture of it out.

::

    PYTHONPATH=engine python -m training.loss_curve engine/training/tiny_glm5_loss.json \
        docs/tiny-glm5-loss.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final, cast

__all__ = ("drawn",)

_WIDTH: Final = 880
_HEIGHT: Final = 300
_LEFT: Final = 56
_RIGHT: Final = 170
_TOP: Final = 20
_BOTTOM: Final = 40
_HIGHEST: Final = 4.0
"""Nats; the first steps lie above."""
_LINES: Final = (
    ("held_out", "held-out text", "a"),
    ("main", "training", "b"),
    ("draft1", "first draft", "c"),
    ("draft2", "second draft", "d"),
)
_STYLE: Final = (
    "text{fill:#333}.g{stroke:#ccc}.s{stroke:#999;stroke-dasharray:4 4}path{fill:none;"
    "stroke-width:2}.a{stroke:#2b5fb8}.b{stroke:#9db7e0}.c{stroke:#c2762b}.d{stroke:#5f9f68}"
    "@media (prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#444}.a{stroke:#7aa5f0}"
    ".b{stroke:#4a648f}}"
)


def drawn(curve: dict[str, list[float]]) -> str:
    """An SVG of the losses, nats a token, over the steps."""
    last = curve["step"][-1]

    def place(step: float, loss: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / last
        y = _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * loss / _HIGHEST
        return f"{x:.1f} {y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="system-ui, sans-serif" font-size="13" role="img"'
        ' aria-label="Loss of tiny-glm5 over its training, nats a token">',
        f"<style>{_STYLE}</style>",
    ]
    for loss in range(int(_HIGHEST) + 1):
        x, y = place(0, loss).split()
        parts.append(f'<path class="g" d="M{x} {y}L{place(last, loss)}"/>')
        parts.append(
            f'<text x="{_LEFT - 10}" y="{float(y) + 4:.1f}" text-anchor="end">{loss}</text>'
        )
    for step in range(0, int(last) + 1, 1000):
        x = place(step, 0).split()[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{_LEFT}" y="14">nats a token</text>')
    for name, _, style in _LINES:
        points = [
            place(step, loss)
            for step, loss in zip(curve["step"], curve[name], strict=True)
            if loss <= _HIGHEST
        ]
        parts.append(f'<path class="{style}" d="M{"L".join(points)}"/>')
    for row, (name, label, style) in enumerate(_LINES):
        left, middle = _WIDTH - _RIGHT + 14, _TOP + 40 + 24 * row
        text = f"{label} {curve[name][-1]:.2f}"
        parts.append(f'<path class="{style}" d="M{left} {middle}h20"/>')
        parts.append(f'<text x="{left + 26}" y="{middle + 4}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(drawn(cast("dict[str, list[float]]", json.loads(source.read_text()))))
