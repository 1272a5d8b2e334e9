"""Engines that a test leads by the hand: a token at a time, or up to a fault."""

from __future__ import annotations

from contextlib import ExitStack

from tilert_engine.scripted import Script
from tilert_stream.errors import EngineFault
from tilert_stream.testing import Gate


class Turnstile:
    """The engine's thread stands before each of its first ``count`` chains."""

    def __init__(self, count: int) -> None:
        self.gates = [Gate() for _ in range(count)]
        self.script = Script(before_chain=self._pass)

    def _pass(self, turn: int) -> None:
        if turn < len(self.gates):
            self.gates[turn].pass_through(turn)

    def __enter__(self) -> Turnstile:
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self.gates:
            gate.open()


class Fault:
    """The engine fails this request before chain ``turn``, as soon as it is let go."""

    def __init__(self, turn: int, gates: ExitStack) -> None:
        self._gate = gates.enter_context(Gate())
        self._turn = turn
        self.script = Script(before_chain=self._fail)
        self.strike = self._gate.open

    def _fail(self, turn: int) -> None:
        if turn == self._turn:
            self._gate.pass_through(turn)
            raise EngineFault("the cache is full")
