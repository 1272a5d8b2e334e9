"""The other side of a pair, in a process of its own: ``peer_process.py KIND NBYTES [PORT]``.

Prints its card; then answers each line of its input, a number, with the checksum of so many
bytes of its region (-1: of all). JSON lines.
"""

from __future__ import annotations

import json
import sys
import zlib
from typing import TYPE_CHECKING

import anyio

from tilert_transports.registry import make

if TYPE_CHECKING:
    from tilert_transports.abc import Transport


def say(text: str) -> None:
    sys.stdout.write(json.dumps(text) + "\n")
    sys.stdout.flush()


def main(kind: str, nbytes: str, *options: str) -> None:
    transport: Transport = make(kind, port=int(options[0])) if options else make(kind)
    region = anyio.run(transport.allocate, int(nbytes))
    say(transport.card().hex())
    view = transport.view(region)
    for line in sys.stdin:
        say(str(zlib.crc32(view[: int(line)] if int(line) >= 0 else view)))


if __name__ == "__main__":
    main(*sys.argv[1:])
