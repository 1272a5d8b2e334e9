"""Servers whose standard streams are closed, or lead to a full disk."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress

import pytest

from tilert_stream.serve.announcement import announce_node

FREE = """
import os, sys
from tilert_stream.serve.cli import main
try:
    main(["--version"])
except SystemExit:
    pass
print(os.open(os.devnull, os.O_RDONLY) > 2, file=open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_socket_gets_the_number_of_a_closed_stream(
    closed: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    said = tmp_path_factory.mktemp("streams") / "said"
    command = f'"$0" -c "$1" "$2" {closed}'
    subprocess.run(["sh", "-c", command, sys.executable, FREE, str(said)], check=False)
    assert said.read_text(encoding="utf-8") == "True\n"


def test_an_announcement_that_nobody_can_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    announce_node("Decoding", "--decode somewhere")


def test_an_announcement_to_a_full_disk_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        with caplog.at_level(logging.WARNING):
            announce_node("Decoding", "--decode somewhere")
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
    assert "No space left on device" in caplog.text
