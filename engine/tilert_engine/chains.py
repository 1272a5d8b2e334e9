"""How long a chain may be: tokens still wanted in, decode steps out.

A chain is a run of decode steps that the device takes without the host reading between them. A step
yields one token, or with multi-token prediction (MTP) one to ``step_tokens``: those of its draft
that the model accepts, and the one that the model adds. How many it will be is known only after the
chain, so a plan counts on the most: then every step of it is needed, whatever is accepted.

* A plan of ``ceil(remaining / step_tokens)`` steps is the fewest with which the budget can be
  reached. One more could find it reached already, and would have been computed for nothing.
* Behind a chain that is still running, ``ceil((remaining - running * step_tokens) / step_tokens)``
  more are needed in any case; where that is none, the host waits and reads first.

Only a stop token makes a step of such a plan superfluous; ``accounting`` reports those as overrun.
Where one can come, little is enqueued ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilert_stream.errors import ConfigError

__all__ = ("DEFAULT_AR_STEPS", "LONGEST_CHAIN", "ChainPlanner")

DEFAULT_AR_STEPS: Final = 8
"""Steps of a chain on a device where reading back costs time."""
LONGEST_CHAIN: Final = 1024
"""Steps; what TileRT's buffers hold."""


@dataclass(frozen=True, slots=True)
class ChainPlanner:
    """Plans the chains of one engine.

    :param ar_steps: the longest chain, 1 to 1024 steps.
    :param step_tokens: the most tokens that a step yields; 1 without MTP.
    :raises ~tilert_stream.errors.ConfigError: one of them is out of range.
    """

    ar_steps: int = DEFAULT_AR_STEPS
    step_tokens: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.ar_steps <= LONGEST_CHAIN:
            raise ConfigError(
                f"ar_steps is {self.ar_steps}; it must be 1 to {LONGEST_CHAIN}", param="ar_steps"
            )
        if self.step_tokens < 1:
            raise ConfigError(f"a step yields {self.step_tokens} tokens; it must be at least 1")

    def length(self, remaining: int) -> int:
        """Steps of the next chain, where none is running: 1 to ``ar_steps``.

        :param remaining: tokens that the budget still has room for.
        :raises ValueError: there is no room; the request is over.
        """
        if remaining < 1:
            raise ValueError(f"{remaining} tokens remain; a request whose budget is spent is over")
        return min(self.ar_steps, self._needed(remaining))

    def ahead(self, remaining: int, running: int, *, may_stop: bool = False) -> int:
        """Steps that can be enqueued behind unread ones; 0: read those first.

        :param remaining: tokens that the budget had room for before the unread steps.
        :param running: steps that were enqueued and have not been read.
        :param may_stop: whether one of the unread steps can meet a stop token. Then a single step
            is risked behind a chain, which hides the host as well; and a chain behind that step.
        """
        left = remaining - running * self.step_tokens
        if left <= 0:
            return 0
        return 1 if may_stop and running > 1 else min(self.ar_steps, self._needed(left))

    def _needed(self, tokens: int) -> int:
        return -(-tokens // self.step_tokens)
