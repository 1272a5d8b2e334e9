"""The four ways in which TileRT decodes: steps in, their ids and accepted lengths out.

=================  ==================  ==================
.                  chains (GLM-5)      steps (V3.2)
=================  ==================  ==================
with MTP           ``MTPChains``       ``MTPSteps``
without            ``PlainChains``     ``PlainSteps``
=================  ==================  ==================

A loop is begun once a sequence, after its cache is in place, and then run chain by chain. With MTP
it begins with a step on the last prompt token, which leads the draft layer to where prefill was;
that step yields prefill's own token again and is thrown away. What a chain has yielded is read in
one copy a buffer, never token by token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

import torch

from tilert_stream.errors import ConfigError

from .device import MTPChainLayer, MTPStepLayer, PlainChainLayer, PlainStepLayer

if TYPE_CHECKING:
    from .device import DecodeLayer

__all__ = ("Loop", "MTPChains", "MTPSteps", "PlainChains", "PlainSteps", "loop_of")

_DEVICE: Final = 0
"""Every GPU has the same results; they are read from the first."""

Chain = tuple[list[int], list[int]]
"""Ids, and how many of them each step yielded."""


class Loop(Protocol):
    """One way of decoding."""

    step_tokens: int
    """The most that a step yields."""
    chained: bool
    """Whether it can take more than one step at a time."""

    def open(self, last_prompt_token: int) -> None:
        """Take the opening step; only called where ``step_tokens`` is above 1."""
        ...

    def begin(self, first_token: int) -> None:
        """Have the next chain start with ``first_token``."""
        ...

    def select(self) -> None:
        """Put the device into this mode; before any step of a sequence."""
        ...

    def run(self, steps: int) -> Chain:
        """Take ``steps`` steps, at least one, and read what they yielded."""
        ...


def loop_of(layer: DecodeLayer, *, step_tokens: int, with_mtp: bool, token_out: int) -> Loop:
    """The best loop that ``layer`` offers.

    :param step_tokens: the generator's ``mtp_seq_len``.
    :param token_out: where a step's intermediates hold its token.
    :raises ~tilert_stream.errors.ConfigError: it offers none.
    """
    if with_mtp:
        if isinstance(layer, MTPChainLayer):
            return MTPChains(layer, step_tokens)
        if isinstance(layer, MTPStepLayer):
            return MTPSteps(layer, step_tokens)
    else:
        if isinstance(layer, PlainChainLayer):
            return PlainChains(layer)
        if isinstance(layer, PlainStepLayer):
            return PlainSteps(layer, token_out)
    raise ConfigError(
        f"TileRT's {type(layer).__name__} has neither show_hands nor forward as this engine calls"
        " them; install the tilert version that docs/engines.md names"
    )


class MTPChains:
    """Chains of MTP steps."""

    chained = True

    def __init__(self, layer: MTPChainLayer, step_tokens: int) -> None:
        self.step_tokens = step_tokens
        self._layer = layer
        self._draft: torch.Tensor | None = None

    def select(self) -> None:
        """As the contract."""
        self._layer.set_prefill_valid_tokens(0)

    def open(self, last_prompt_token: int) -> None:
        """As the contract."""
        self._layer.show_hands(_filled(last_prompt_token, self.step_tokens), 1)

    def begin(self, first_token: int) -> None:
        """As the contract."""
        self._draft = _filled(first_token, self.step_tokens)

    def run(self, steps: int) -> Chain:
        """As the contract."""
        draft = self._draft
        if draft is None:
            # A copy: the chain writes its own drafts into the buffer while it reads this one.
            live = self._layer.get_next_draft_tokens(_DEVICE)
            draft = live.reshape(1, self.step_tokens).clone()
        self._draft = None
        self._layer.show_hands(draft, steps)
        ids = _counted(self._layer.ar_accepted_tokens(_DEVICE))
        return ids, _counted(self._layer.ar_num_accepted(_DEVICE))


class PlainChains:
    """Chains of steps without MTP."""

    chained = True
    step_tokens = 1

    def __init__(self, layer: PlainChainLayer) -> None:
        self._layer = layer
        self._token = 0

    def select(self) -> None:
        """As the contract."""
        self._layer.set_prefill_valid_tokens(0, with_mtp=False)

    def open(self, last_prompt_token: int) -> None:
        """There is no draft layer to lead anywhere."""

    def begin(self, first_token: int) -> None:
        """As the contract."""
        self._token = first_token

    def run(self, steps: int) -> Chain:
        """As the contract."""
        self._layer.show_hands_no_mtp(torch.tensor([self._token], dtype=torch.int32), steps)
        ids = _counted(self._layer.ar_accepted_tokens_no_mtp(_DEVICE))
        if ids:
            self._token = ids[-1]
        return ids, [1] * len(ids)


class MTPSteps:
    """MTP, one step at a time."""

    chained = False

    def __init__(self, layer: MTPStepLayer, step_tokens: int) -> None:
        self.step_tokens = step_tokens
        self._layer = layer
        self._draft: torch.Tensor | None = None

    def select(self) -> None:
        """As the contract."""
        self._layer.set_prefill_valid_tokens(0)

    def open(self, last_prompt_token: int) -> None:
        """As the contract."""
        self._layer.forward(_filled(last_prompt_token, self.step_tokens))

    def begin(self, first_token: int) -> None:
        """As the contract."""
        self._draft = _filled(first_token, self.step_tokens)

    def run(self, steps: int) -> Chain:
        """As the contract."""
        ids: list[int] = []
        accepted: list[int] = []
        for _ in range(steps):
            draft = self._draft
            if draft is None:
                live = self._layer.get_next_draft_tokens(_DEVICE)
                draft = live.reshape(1, self.step_tokens).clone()
            self._draft = None
            self._layer.forward(draft)
            count = self._layer.get_num_accepted(_DEVICE)
            ids += _numbers(self._layer.get_predicted_tokens(_DEVICE))[:count]
            accepted.append(count)
        return ids, accepted


class PlainSteps:
    """Without MTP, one step at a time."""

    chained = False
    step_tokens = 1

    def __init__(self, layer: PlainStepLayer, token_out: int) -> None:
        self._layer = layer
        self._token_out = token_out
        self._token = 0

    def select(self) -> None:
        """A layer without chains has no modes to select from."""

    def open(self, last_prompt_token: int) -> None:
        """There is no draft layer to lead anywhere."""

    def begin(self, first_token: int) -> None:
        """As the contract."""
        self._token = first_token

    def run(self, steps: int) -> Chain:
        """As the contract."""
        ids: list[int] = []
        for _ in range(steps):
            results = self._layer.forward(torch.tensor(self._token))
            intermediates = results[_DEVICE][0]
            self._token = _numbers(intermediates[self._token_out])[0]
            ids.append(self._token)
        return ids, [1] * steps


def _filled(token: int, length: int) -> torch.Tensor:
    return torch.full((1, length), token, dtype=torch.int32)


def _counted(buffer: torch.Tensor) -> list[int]:
    """Read a buffer that begins with how many numbers of it count."""
    count, *numbers = _numbers(buffer)
    if not 0 < count <= len(numbers):
        raise RuntimeError(f"TileRT says {count} numbers came, in a buffer of {len(numbers)}")
    return numbers[:count]


def _numbers(buffer: torch.Tensor) -> list[int]:
    return cast("list[int]", buffer.flatten().tolist())  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
