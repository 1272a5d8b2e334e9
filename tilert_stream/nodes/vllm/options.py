"""``kv_connector_extra_config`` → the connector's options, TileRT's names and our own.

Every option has one name of ours; where TileRT's connector has the same one, its name works too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tilert_stream.errors import ConfigError

from ..hand_over.destination import DEFAULT_CTRL_PORT

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("VllmOptions",)

_TILERT: Final[Mapping[str, str]] = {
    "tilert_host": "host",
    "tilert_ctrl_port": "ctrl_port",
    "tilert_model": "model",
    "tilert_max_seq_len": "max_seq_len",
    "tilert_transport": "transport",
    "tilert_sync_send": "sync_send",
}
_TEXTS: Final = ("host", "model", "transport", "cluster_key_file")
_INTEGERS: Final = ("ctrl_port", "max_seq_len", "staging_bytes")
_MOST_STAGING: Final = 8 * 2**30
_NAMES: Final = (*_TEXTS, *_INTEGERS, "sync_send", "send_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """What the operator may set."""

    host: str | None = None
    """Decode node for requests that name none."""
    ctrl_port: int = DEFAULT_CTRL_PORT
    """Control port for requests that name none."""
    model: str | None = None
    """The model's name, equal to the decode node's; None: the last part of vLLM's ``--model``."""
    max_seq_len: int | None = None
    """Tokens of the longest prompt that is handed over; None: vLLM's ``--max-model-len``."""
    transport: str = "auto"
    sync_send: bool = False
    """Wait for each hand-over before vLLM goes on."""
    staging_bytes: int | None = None
    """Memory for KV caches that wait to be sent; None: four prompts of ``max_seq_len``, at most
    8 GiB, at least one."""
    send_timeout: float = 60.0
    """Seconds that a hand-over may take, and that prefill waits for staging memory."""
    cluster_key_file: Path | None = field(default=None, repr=False)
    """File with the cluster's key in its first line."""

    @classmethod
    def of(cls, extra: Mapping[str, object]) -> VllmOptions:
        """Read ``kv_connector_extra_config``.

        :raises ~tilert_stream.errors.ConfigError: an unknown name, one option under two names with
            two values, or a value of a wrong type.
        """
        given: dict[str, object] = {}
        for key, value in extra.items():
            name = _TILERT.get(key, key)
            if name not in _NAMES:
                raise ConfigError(
                    f"kv_connector_extra_config has {key!r}; known are"
                    f" {', '.join((*_NAMES, *_TILERT))}"
                )
            if name in given and given[name] != value:
                raise ConfigError(
                    f"kv_connector_extra_config sets {name} twice: {given[name]!r} and {value!r}"
                )
            given[name] = value
        return cls(
            host=_text(given, "host"),
            ctrl_port=_integer(given, "ctrl_port", most=65535) or DEFAULT_CTRL_PORT,
            model=_text(given, "model"),
            max_seq_len=_integer(given, "max_seq_len"),
            transport=_text(given, "transport") or "auto",
            sync_send=_flag(given, "sync_send"),
            staging_bytes=_integer(given, "staging_bytes"),
            send_timeout=_seconds(given, "send_timeout", 60.0),
            cluster_key_file=_path(given, "cluster_key_file"),
        )

    def staging_for(self, longest: int) -> int:
        """The size of the staging memory.

        :param longest: bytes of the longest prompt's KV cache.
        :raises ~tilert_stream.errors.ConfigError: one of them would not fit.
        """
        if self.staging_bytes is None:
            return max(longest, min(4 * longest, _MOST_STAGING))
        if self.staging_bytes < longest:
            raise ConfigError(
                f"kv_connector_extra_config: staging_bytes is {self.staging_bytes}; the longest"
                f" prompt needs {longest}, or lower max_seq_len"
            )
        return self.staging_bytes

    def cluster_key(self) -> str | None:
        """The cluster's key; None without one.

        :raises ~tilert_stream.errors.ConfigError: its file cannot be read, or is empty.
        """
        if self.cluster_key_file is None:
            return None
        try:
            key = self.cluster_key_file.read_text().partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cluster_key_file cannot be read: {error}") from error
        if not key:
            raise ConfigError("cluster_key_file is empty; its first line is the cluster's key")
        return key


def _refuse(name: str, value: object, needed: str) -> NoReturn:
    raise ConfigError(f"kv_connector_extra_config: {name} is {value!r}; {needed} is needed")


def _text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    if value is None or (isinstance(value, str) and value):
        return value
    _refuse(name, value, "a text")


def _path(given: Mapping[str, object], name: str) -> Path | None:
    text = _text(given, name)
    return None if text is None else Path(text)


def _integer(given: Mapping[str, object], name: str, *, most: int | None = None) -> int | None:
    value = given.get(name)
    # bool is a subclass of int, and true is no number.
    if value is None or (type(value) is int and 1 <= value <= (most or value)):
        return value
    _refuse(name, value, f"an integer from 1 to {most}" if most else "an integer of 1 or more")


def _flag(given: Mapping[str, object], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        _refuse(name, value, "true or false")
    return value


def _seconds(given: Mapping[str, object], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86400:
        _refuse(name, value, "a number of seconds, more than 0 and at most 86400,")
    return float(value)
