"""Settings of a role: command line, environment and file in, one configuration out.

The first of these that gives an option decides it: command line, environment, file, default. A
list is taken whole from one place, never put together from several.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tilert_stream.errors import ConfigError

from .options import PREFIX, option_specs
from .settings_file import read_settings_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .options import OptionSpec

__all__ = ("CACHE_VARIABLE", "CONFIG_VARIABLE", "Settings", "load_settings")

CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"
"""Path of the TOML file."""
CACHE_VARIABLE: Final = f"{PREFIX}CACHE"
"""Folder of the demo model."""

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True)
class Settings(Generic[ConfigT]):
    """What a role runs with, and what its operator should know about it."""

    config: ConfigT
    warnings: tuple[str, ...]


def load_settings(
    config: type[ConfigT],
    arguments: Mapping[str, object],
    environ: Mapping[str, str],
) -> Settings[ConfigT]:
    """Put a configuration together.

    :param config: a dataclass whose fields are options.
    :param arguments: what the command line gave, by field name, ``config`` for the file's path
        among them; None where it gave nothing.
    :param environ: the environment; an empty variable counts as absent.
    :raises ~tilert_stream.errors.ConfigError: a name or a value is wrong.
    """
    specs = option_specs(config)
    path = arguments.get("config") or environ.get(CONFIG_VARIABLE)
    values: dict[str, Any] = {}
    if path:
        values |= read_settings_file(Path(str(path)), specs)
    for spec in specs:
        if text := environ.get(spec.variable):
            values[spec.name] = spec.from_text(text, spec.variable)
        given = arguments.get(spec.name)
        if given is not None and given != []:
            values[spec.name] = spec.from_arguments(given)
    if key_file := values.get("api_key_file"):
        values["api_keys"] = (*values.get("api_keys", ()), *_read_keys(key_file))
    return Settings(config(**values), tuple(_warnings(specs, environ)))


def _read_keys(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"the key file {path} cannot be read: {error.strerror}.", param="api_key_file"
        ) from error
    except UnicodeDecodeError:
        # The decoder's own message quotes a piece of the file, and chaining would print it.
        raise ConfigError(f"the key file {path} is no UTF-8 text.", param="api_key_file") from None
    keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not keys:
        # Going on would open a server that was meant to be closed.
        raise ConfigError(
            f"the key file {path} holds no key; it needs one a line.", param="api_key_file"
        )
    return keys


def _warnings(specs: Sequence[OptionSpec], environ: Mapping[str, str]) -> list[str]:
    known = [CONFIG_VARIABLE, CACHE_VARIABLE, *(spec.variable for spec in specs)]
    found: list[str] = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "--help lists those that are."
            found.append(f"{name} is set but is no option; {hint}")
    if "TILERT_DECODE_POLL_MS" in environ:
        found.append(
            "TILERT_DECODE_POLL_MS is set but has no successor: tokens arrive as events, nothing"
            " is polled. --coalesce-ms makes fewer, larger writes."
        )
    return found
