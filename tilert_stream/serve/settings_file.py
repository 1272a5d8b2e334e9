"""The TOML file: a path in, options by field name out.

Keys are the options' names, with ``_`` or ``-``; what can be repeated is a list, or one value.
Stages may be tables::

    port = 9000
    served-model-name = ["small", "default"]

    [[stages]]
    use = "shop.moderation:Moderate"
    after = "detokenize"
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from typing import TYPE_CHECKING

from tilert_stream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .options import OptionSpec

__all__ = ("read_settings_file",)


def read_settings_file(path: Path, specs: Sequence[OptionSpec]) -> dict[str, object]:
    """The options that the file at ``path`` gives.

    :raises ~tilert_stream.errors.ConfigError: the file cannot be read, is no TOML, has a key that
        is no option, one key twice, or a value of another type.
    """
    known = {spec.name: spec for spec in specs} | {spec.key: spec for spec in specs}
    found: dict[str, object] = {}
    for written, value in _parse(path).items():
        spec = known.get(written.replace("-", "_"))
        if spec is None:
            raise ConfigError(_unknown(written, value, path, list(known)), param=written)
        if spec.name in found:
            raise ConfigError(
                f"{spec.key} stands twice in {path}, the second time as {written}; keep one.",
                param=written,
            )
        found[spec.name] = spec.from_toml(value, f"{written} in {path}")
    return found


def _parse(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {error.strerror}.", param="config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the configuration file {path} is no TOML: {error}.", param="config"
        ) from error


def _unknown(written: str, value: object, path: Path, known: list[str]) -> str:
    close = get_close_matches(written.replace("-", "_"), known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"it must be one of {', '.join(known)}."
    if isinstance(value, dict):
        return f"[{written}] in {path} is a table; options stand at the top of the file: {hint}"
    # The value of a misspelt api_key is a key: it is not shown.
    return f"{written} in {path} is no option; {hint}"
