"""The scripted engine under orders: its pace comes from the board, its tokens leave their moment.

The hooks run on the engine's own thread; its CPU time is measured there and is not the server's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from tilert_engine.scripted import Script

from .board import (
    CHAIN,
    CHAIN_NS,
    EMITTED,
    ENGINE_CPU,
    HOLD,
    OPENED,
    TOKENS,
    TURNS,
    place,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .board import Board

__all__ = ("Gate", "make_script", "prompt_of")

LETTERS: Final = 26
GATHERING: Final = 0.0005
"""Seconds of a turn without tokens, while streams are still being opened."""


class Gate:
    """Blocks the engine's thread until the load generator writes to this process's input.

    The end of that input means that the load generator has gone: the process ends then.
    """

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)
        threading.Thread(target=self._listen, name="gate", daemon=True).start()

    def _listen(self) -> None:
        while os.read(sys.stdin.fileno(), 1):
            self._passes.release()
        os._exit(0)

    def pass_through(self) -> None:
        """Wait, without a wake-up, for one byte of input."""
        self._passes.acquire()


def prompt_of(stream: int) -> str:
    """The prompt that tells the engine which stream it is."""
    return str(stream)


def make_script(board: Board, gate: Gate) -> Script:
    """Tokens are letters; token ``index`` of a stream is the same in prefill and decode."""
    orders = _Orders(board, gate)
    return Script(
        token=orders.token,
        chain=orders.chain,
        before_import=orders.before_import,
        before_chain=orders.before_chain,
    )


class _Orders:
    """The hooks."""

    def __init__(self, board: Board, gate: Gate) -> None:
        self._cells = board.cells
        self._gate = gate

    def token(self, prompt_ids: Sequence[int], index: int) -> int:
        """Make a token, and note when, unless this is prefill's told once more."""
        if index < TOKENS:
            cell = place(int(bytes(prompt_ids)), index)
            if not self._cells[cell]:
                self._cells[cell] = time.monotonic_ns()
        if index:
            self._cells[EMITTED] += 1
        return ord("a") + index % LETTERS

    def chain(self, _turn: int) -> int:
        return 0 if self._gathering() else self._cells[CHAIN]

    def before_import(self, _slot: int) -> None:
        self._cells[OPENED] += 1

    def before_chain(self, _turn: int) -> None:
        self._cells[TURNS] += 1
        self._cells[ENGINE_CPU] = time.thread_time_ns()
        if self._gathering():
            time.sleep(GATHERING)
        elif self._cells[HOLD]:
            self._gate.pass_through()
            self._cells[HOLD] = 0
        # Also with 0: the interpreter's lock is given up for once, as a real engine's calls do.
        time.sleep(self._cells[CHAIN_NS] / 1e9)

    def _gathering(self) -> bool:
        return self._cells[OPENED] < self._cells[HOLD]
