"""Every check there is, theme by theme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import ConfigError
from .answers import ANSWERS
from .disconnect import DISCONNECT
from .errors import ERRORS
from .headers import HEADERS
from .models import MODELS
from .parameters import PARAMETERS
from .sse import SSE
from .stop import STOP
from .usage import USAGE
from .utf8 import UTF8

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..check import Check

__all__ = ("CHECKS", "select")

_THEMES: Final = (
    MODELS,
    ANSWERS,
    HEADERS,
    SSE,
    USAGE,
    STOP,
    UTF8,
    PARAMETERS,
    ERRORS,
    DISCONNECT,
)
CHECKS: Final = tuple(check for theme in _THEMES for check in theme.checks)


def select(only: Iterable[str] = (), skip: Iterable[str] = ()) -> list[Check]:
    """The checks of these ids and themes.

    :raises ~tilert_stream.errors.ConfigError: an id or theme that there is not.
    """
    wanted, unwanted = tuple(only), tuple(skip)
    known = {check.id for check in CHECKS} | {theme.name for theme in _THEMES}
    for name in (*wanted, *unwanted):
        if name not in known:
            raise ConfigError(f"there is no check or theme {name!r}; --list names them.")
    return [
        check
        for check in CHECKS
        if (not wanted or _among(check, wanted)) and not _among(check, unwanted)
    ]


def _among(check: Check, names: tuple[str, ...]) -> bool:
    return check.id in names or check.id.partition(".")[0] in names
