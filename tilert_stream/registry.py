"""A stage by object, by registered name, or by ``"module:attr"``.

Names come from two places, looked up only when one is asked for: the built-ins below, then the
installed entry points of the group ``tilert_stream.stages``. Nothing loads unless it is named. A
built-in's name cannot be taken over, and two plugins with one name are an error: a stage never
changes silently.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from .errors import StageLoadError, StageNotFound

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

__all__ = ("BUILT_IN", "GROUP", "load", "names")

GROUP: Final = "tilert_stream.stages"

BUILT_IN: Final[dict[str, str]] = {
    "stop_strings": "tilert_stream.stages.stop:StopStrings",
}
"""Stages that need no argument, so that a name is enough."""


def names() -> list[str]:
    """Every name that ``load`` knows now."""
    return sorted({*BUILT_IN, *(point.name for point in _entry_points())})


def load(reference: str) -> object:
    """The object behind a registered name or ``"module:attr"``.

    :raises ~tilert_stream.errors.StageNotFound: no such name; the known ones are listed.
    :raises ~tilert_stream.errors.StageLoadError: the name is known but its import fails; the
        plugin's own error is chained and quoted.
    """
    if ":" in reference:
        return _import(reference, reference)
    if reference in BUILT_IN:
        return _import(reference, BUILT_IN[reference])
    found = _plugins(reference)
    if not found:
        raise StageNotFound(_unknown(reference))
    if len(found) > 1:
        raise StageLoadError(
            f"stage {reference!r} is registered twice: {found[0].value} and {found[1].value};"
            " give one of them as 'module:attr'"
        )
    return _import(reference, f"{found[0].module}:{found[0].attr}")


def _plugins(name: str) -> list[EntryPoint]:
    # One installed plugin can be listed twice (an editable install beside its metadata).
    return list({point.value: point for point in _entry_points().select(name=name)}.values())


def _entry_points() -> EntryPoints:
    # Imported on use: it costs as much as all the rest of the package.
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    known = names()
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return (
        f"no stage is called {name!r}.{hint} Known: {', '.join(known)}."
        " A stage of your own is given as 'module:attr'."
    )


def _import(reference: str, path: str) -> object:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise StageLoadError(f"stage {reference!r}: {path!r} is not of the form 'module:attr'")
    try:
        target: object = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise StageLoadError(
            f"stage {reference!r}: importing {module_name!r} failed:"
            f" {type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError as error:
            raise StageLoadError(
                f"stage {reference!r}: module {module_name!r} has no {attribute!r}"
            ) from error
        except Exception as error:  # a module that loads its attributes late
            raise StageLoadError(
                f"stage {reference!r}: loading {attribute!r} failed:"
                f" {type(error).__name__}: {error}"
            ) from error
    return target
