"""The project's own processes: ``python -m tilert_stream.serve ROLE``, each says where it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.vllm.server import ENVIRONMENT


def _copy(output: IO[str], log: Path, before: str, said: Future[str]) -> None:
    """Keep what it prints; what follows ``before`` on a line is the announcement."""
    with output, log.open("w") as file:
        for line in output:
            file.write(line)
            file.flush()
            if before in line and not said.done():
                said.set_result(line.partition(before)[2].split()[0])
    if not said.done():
        said.set_exception(RuntimeError(f"it did not start: {log.read_text()[-4000:]}"))


@contextmanager
def role(name: str, *options: str, log: Path, before: str) -> Generator[str]:
    """Run a role until the block ends; what it announces.

    :param before: what stands before the address in its announcement.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tilert_stream.serve", name, *options],
        env={**os.environ, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said: Future[str] = Future()
    copier = threading.Thread(target=_copy, args=(process.stdout, log, before, said))
    copier.start()
    try:
        yield said.result(300)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        copier.join()
