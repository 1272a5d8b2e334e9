"""Limits and times of a control connection: one frozen object for both ends."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tilert_stream.errors import ConfigError

__all__ = ("ControlSettings",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSettings:
    """Times are seconds, sizes bytes.

    :raises ~tilert_stream.errors.ConfigError: a value is not above 0, or the heartbeat leaves no
        room for one to be lost.
    """

    handshake_timeout: float = 10.0
    """From the connection to the peer's HELLO, whatever else comes."""
    heartbeat: float = 5.0
    """Between two pings, in both directions."""
    silence: float = 20.0
    """Without one byte from the peer; then it is lost."""
    linger: float = 1.0
    """What a last message is given to leave before the connection is closed."""
    drain_timeout: float = 30.0
    """What a transport is given to say that nothing of an aborted write can land any more."""
    max_handshake_bytes: int = 1024 * 1024
    """A frame of a peer that is not known yet."""
    max_unsent_bytes: int = 4 * 1024 * 1024
    """Waiting for a peer that does not read; then it is lost."""
    max_connections: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value: float = getattr(self, field.name)
            if not value > 0:
                raise ConfigError(f"{field.name} is {value}; it must be above 0.", param=field.name)
        if self.silence < 2 * self.heartbeat:
            raise ConfigError(
                f"silence is {self.silence}; it must be at least twice the heartbeat"
                f" ({self.heartbeat}).",
                param="silence",
            )
