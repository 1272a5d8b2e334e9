"""An output parser by name, or by the chat template that its model was trained on.

Names come from the parsers here, then from installed entry points of the group
``tilert_stream.parsers``. A name here cannot be taken over. A plugin is never guessed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from .abc import OutputParser

__all__ = ("AUTO", "BUILT_IN", "GROUP", "NONE", "choose_parser")

GROUP: Final = "tilert_stream.parsers"
AUTO: Final = "auto"
NONE: Final = "none"
BUILT_IN: Final[dict[str, str]] = {
    "glm47": "tilert_stream.parsers.glm47:GLM47",
    "deepseek": "tilert_stream.parsers.deepseek:DEEPSEEK",
    "hermes": "tilert_stream.parsers.hermes:HERMES",
    "think": "tilert_stream.parsers.think:THINKING",
}
"""In the order in which they are asked whether a template is theirs: GLM's calls stand in Hermes'
marker, and all of them reason in ``<think>``."""


def choose_parser(name: str, template: str | None) -> OutputParser | None:
    """The parser called ``name``; None for ``none``.

    :param name: ``auto`` takes the one whose format ``template`` certainly writes, or none.
    :param template: the source of the model's chat template.
    :raises ~tilert_stream.errors.ConfigError: there is no such parser, or it cannot be loaded.
    """
    if name == NONE:
        return None
    if name != AUTO:
        return _load(name, BUILT_IN[name] if name in BUILT_IN else _plugin(name))
    for known, path in BUILT_IN.items() if template else ():
        parser = _load(known, path)
        if parser.writes(template or ""):
            return parser
    return None


def _plugin(name: str) -> str:
    from importlib.metadata import entry_points

    points = entry_points(group=GROUP)
    # One installed plugin can be listed twice (an editable install beside its metadata).
    found = sorted({point.value for point in points.select(name=name)})
    if len(found) == 1:
        return found[0]
    known = ", ".join((AUTO, NONE, *BUILT_IN, *sorted(point.name for point in points)))
    problem = "registered twice: " + " and ".join(found) if found else "not known"
    raise ConfigError(
        f"output_parser is {name!r}, which is {problem}; it must be one of {known}.",
        param="output_parser",
    )


def _load(name: str, path: str) -> OutputParser:
    module, _, attribute = path.partition(":")
    try:
        parser: object = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ConfigError(
            f"output_parser is {name!r}; loading {path} failed: {type(error).__name__}: {error}",
            param="output_parser",
        ) from error
    missing = [
        member
        for member in ("name", "tools", "markers", "writes", "open")
        if not hasattr(parser, member)
    ]
    if missing:
        raise ConfigError(
            f"output_parser is {name!r}; {path} is no output parser: it has no"
            f" {', '.join(missing)}",
            param="output_parser",
        )
    return cast("OutputParser", parser)
