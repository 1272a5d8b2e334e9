"""A GLM-5-shaped model's decode step in tensors alone: a token and its drafts in, the next out.

It does what ``GLMDecode`` does a step at a time on the host, with shapes that never change: all
drafts are verified in every step, the draft layer runs over all of them, and what was not kept is
written over by the next step before anybody sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tilert_engine.torch.places import window

if TYPE_CHECKING:
    from tilert_engine.torch.device_sampler import Way
    from tilert_engine.torch.slot_state import SlotState

    from .memory import Memory
    from .network import Network

__all__ = ("GLMStep",)


class GLMStep:
    """The step of one slot, whose cache is ``memory``."""

    def __init__(self, network: Network, memory: Memory, state: SlotState) -> None:
        self._network = network
        self._memory = memory
        self._state = state

    def __call__(self, stop: int, way: Way, /) -> None:
        """Take the step; attention reads positions before ``stop``."""
        network, state = self._network, self._state
        places = window(state.places, stop)
        hidden = network.hidden(state.tokens, places, self._memory)
        logits, drafts = network.logits(hidden), state.tokens[1:]
        drawn, peaks = state.sampler.draw(way, logits, state.numbers, drafts=drafts)
        if state.step_tokens == 1:
            state.advance(way, logits, drawn, peaks)
            return
        right = (drawn[:-1] == drafts).long()
        kept = right.cumprod(0).sum(0, keepdim=True) + 1
        states = network.draft(hidden, drawn, places, self._memory)
        following = self._drafts(states.index_select(0, kept - 1), kept, stop, way)
        state.advance(way, logits, drawn, peaks, kept)
        state.tokens[1:] = following

    def _drafts(
        self, hidden: torch.Tensor, kept: torch.Tensor, stop: int, way: Way
    ) -> torch.Tensor:
        """The draft layer's guesses after ``kept`` tokens, from its ``hidden`` state there."""
        network, state = self._network, self._state
        place, number = state.places[:1] + kept, state.numbers[:1] + kept
        drafts: list[torch.Tensor] = []
        while True:
            logits = network.draft_logits(hidden)
            guess, _ = state.sampler.draw(way, logits, number + len(drafts), guess=True)
            drafts.append(guess)
            if len(drafts) == state.step_tokens - 1:
                return torch.cat(drafts)
            at = window(place + (len(drafts) - 1), stop)
            hidden = network.draft(hidden, guess, at, self._memory)
