"""What bounds a run: command line or code in, one frozen object out."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

__all__ = ("Settings",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every request, check and answer has an end.

    :raises ~tilert_stream.errors.ConfigError: a value is not positive.
    """

    timeout: float = 60.0
    """Seconds for one request, from the connection to the last byte of the answer."""
    requests: int = 64
    """Requests that one check may send."""
    answer_bytes: int = 8 * 1024 * 1024
    """Bytes of one answer that are read; a longer one is a failure."""
    leavers: int = 8
    """Clients that leave before the server is asked whether it still serves; more than the
    server has slots finds more."""

    def __post_init__(self) -> None:
        for name in ("timeout", "requests", "answer_bytes", "leavers"):
            value: float = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"{name} is {value}; it must be above 0.", param=name)
