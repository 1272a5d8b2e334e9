"""Granian's command line, on a socket that listens already: descriptor ``GRANIAN_TEST_DESCRIPTOR``.

Granian prints that it listens before it does, and offers nobody to wait until it does.
"""

from __future__ import annotations

import os
from typing import Any, cast

from granian import cli
from granian._granian import SocketHolder
from granian.server.common import AbstractServer

BACKLOG = 128


def _take_the_socket(server: Any) -> None:
    server._sfd = int(os.environ["GRANIAN_TEST_DESCRIPTOR"])
    server._shd = cast("Any", SocketHolder)(server._sfd, False, BACKLOG)


if __name__ == "__main__":
    cast("Any", AbstractServer)._init_shared_socket = _take_the_socket
    cast("Any", cli).entrypoint()
