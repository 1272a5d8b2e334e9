"""Refusals of requests that keep to the described schema: for what no JSON Schema can say."""

from __future__ import annotations

import re
from typing import NamedTuple


class Foretold(NamedTuple):
    """A refusal, by the whole of its message."""

    why: str
    message: str


FORETOLD = (
    Foretold(
        "how many tokens a text has, and their sum with max_tokens",
        r"\S+ has \d+ tokens(;| and max_(completion_)?tokens is \d+, together \d+;) the model's"
        r" context is \d+ tokens.*",
    ),
    Foretold(
        "one number is at most another",
        r"min_tokens is \d+; it must be at most max_(completion_)?tokens, which is \d+",
    ),
    Foretold(
        "a product of a length and a number",
        r"prompt is a list of \d+ and n is \d+, together \d+ answers; it must be at most 128.*",
    ),
    Foretold(
        "1.0 is an integer in JSON Schema, and none to the server",
        r"\S+ is -?\d+(\.0|(\.\d+)?e\+\d+); it must be an integer",
    ),
    Foretold(
        "a string holds JSON",
        r"\S+\.arguments is .*; it must be a JSON object as text, or empty",
    ),
)


def foretold(message: str) -> Foretold | None:
    """The one that ``message`` is."""
    found = (each for each in FORETOLD if re.fullmatch(each.message, message, re.DOTALL))
    return next(found, None)
