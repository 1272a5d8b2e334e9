"""A Llama's decode step in tensors alone: one token and its place in, the next token out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .places import window

if TYPE_CHECKING:
    from .device_sampler import Way
    from .llama import KVBuffer, Llama
    from .slot_state import SlotState

__all__ = ("LlamaStep",)


class LlamaStep:
    """The step of one slot, whose keys and values lie in ``buffer``."""

    def __init__(self, llama: Llama, buffer: KVBuffer, state: SlotState) -> None:
        self._llama = llama
        self._buffer = buffer
        self._state = state

    def __call__(self, stop: int, way: Way, /) -> None:
        """Take the step; attention reads positions before ``stop``."""
        llama, state = self._llama, self._state
        hidden = llama.hidden(state.tokens, window(state.places, stop), self._buffer)
        logits = llama.logits(hidden).unsqueeze(0)
        state.advance(way, logits, *state.sampler.draw(way, logits, state.numbers))
