"""Ports for processes that are started again where they were."""

from __future__ import annotations

import socket
from random import SystemRandom
from typing import Final

PORTS: Final = range(20_000, 32_000)
"""Below those that the kernel gives to whoever asks for none: a connection that is made while the
process is away can't take its port."""


def free_ports(count: int) -> list[int]:
    """Different ones, that were free a moment ago."""
    found: list[int] = []
    for port in SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} ports of {PORTS} are free")
