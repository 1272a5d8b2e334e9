"""A transport by its name.

In: a name and the options of that kind. Out: a transport. Names come from the built-in ones below,
then from installed entry points of the group ``tilert_stream.transports``: each a callable that
takes the options and returns a ``Transport``. Nothing loads unless it is named.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, Protocol, cast

from .errors import TransportNotFound, TransportUnavailable

if TYPE_CHECKING:
    from .abc import Transport

__all__ = ("BUILT_IN", "GROUP", "Option", "TransportFactory", "load", "make", "names")

GROUP: Final = "tilert_stream.transports"

BUILT_IN: Final[dict[str, str]] = {
    "auto": "tilert_transports.auto:make_auto",
    "memory": "tilert_transports.memory:MemoryTransport",
    "mooncake": "tilert_transports.mooncake:MooncakeTransport",
    "nixl": "tilert_transports.nixl:NixlTransport",
    "shm": "tilert_transports.shm:ShmTransport",
    "tcp": "tilert_transports.tcp:TcpTransport",
}

Option = str | int | None


class TransportFactory(Protocol):
    """What a name stands for."""

    def __call__(self, **options: Option) -> Transport:
        """Make one, with the options of its kind."""
        ...


def names() -> list[str]:
    """Every name that ``make`` knows now."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def make(name: str, **options: Option) -> Transport:
    """A new transport.

    :raises TransportNotFound: no such name; the known ones are listed.
    :raises TransportUnavailable: its library is missing or does not load.
    """
    return load(name)(**options)


def load(name: str) -> TransportFactory:
    """What makes transports of that name; whoever makes them in an event loop imports it before.

    :raises TransportNotFound: no such name; the known ones are listed.
    :raises TransportUnavailable: its library is missing or does not load.
    """
    # A built-in's name cannot be taken over.
    found = [BUILT_IN[name]] if name in BUILT_IN else _plugins(name)
    if not found:
        raise TransportNotFound(f"no transport is called {name!r}; known: {', '.join(names())}")
    if len(found) > 1:
        raise TransportUnavailable(
            f"transport {name!r} is registered twice: {found[0]} and {found[1]}; uninstall one"
        )
    module, _, attribute = found[0].partition(":")
    try:
        return cast("TransportFactory", getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise TransportUnavailable(
            f"transport {name!r} cannot be loaded from {found[0]}: {error}"
        ) from error


def _plugins(name: str) -> list[str]:
    # One installed plugin can be listed twice (an editable install beside its metadata).
    return sorted({point.value for point in entry_points(group=GROUP).select(name=name)})
