"""Prefill jobs: prompts computed a chunk at a time, so that short ones pass long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from tilert_stream.completion import Completion

from .worker import EngineWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilert_stream.abc import PrefillEngine, PrefillResult
    from tilert_stream.errors import TilertStreamError
    from tilert_stream.events import Limits, Sampling

__all__ = ("PrefillJob", "PrefillWorker")

RunT = TypeVar("RunT")


class PrefillJob(Generic[RunT]):
    """One request's prompt on the prefill engine."""

    def __init__(
        self,
        engine: PrefillEngine[RunT],
        prompt_ids: Sequence[int],
        limits: Limits,
        sampling: Sampling,
    ) -> None:
        self._engine = engine
        self._arguments = (prompt_ids, limits, sampling)
        self._run: RunT | None = None
        self.computed: Completion[PrefillResult] = Completion()
        """Set when the first token and the KV cache exist."""

    def open(self) -> None:
        """Begin the run."""
        self._run = self._engine.open(*self._arguments)

    def turn(self) -> bool:
        """Compute one chunk."""
        if self._run is None:
            raise RuntimeError("a prompt takes turns once its run is open")
        result = self._engine.advance(self._run)
        if result is None:
            return True
        self.computed.set(result)
        return False

    def close(self) -> None:
        """Free the run."""
        run, self._run = self._run, None
        if run is not None:
            self._engine.close(run)

    def fail(self, error: TilertStreamError) -> None:
        """Tell the request's task."""
        self.computed.fail(error)


class PrefillWorker(EngineWorker, Generic[RunT]):
    """A prefill engine and its owner thread."""

    def __init__(self, engine: PrefillEngine[RunT]) -> None:
        super().__init__("tilert-prefill")
        self.engine = engine

    def submit(
        self, prompt_ids: Sequence[int], limits: Limits, sampling: Sampling
    ) -> PrefillJob[RunT]:
        """Have a prompt computed; the job's ``computed`` tells when it is."""
        job = PrefillJob(self.engine, prompt_ids, limits, sampling)
        self._thread.open(job)
        self._thread.begin(job)
        return job
