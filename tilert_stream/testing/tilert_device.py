"""The fake's GPUs: TileRT's calls on a decode layer in, what a device would answer out.

``FakeDevice`` is what lies in memory and one step on it; the two layers are the two sets of calls
by which TileRT's models are driven.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Final, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = (
    "TOKEN_OUT",
    "FakeChainLayer",
    "FakeDevice",
    "FakeModel",
    "FakeSequence",
    "FakeStepLayer",
    "Misuse",
)

TOKEN_OUT: Final = 3
"""Where a step's intermediates hold its token."""
_JUNK: Final = -77
"""What stands where nothing has been written."""


class Misuse(AssertionError):
    """A call that the real device would have taken, and answered with nonsense."""


@dataclass(frozen=True, slots=True)
class FakeModel:
    """What the model says. Index 0 is prefill's token."""

    token: Callable[[int], int]
    """Its most likely token at an index of the answer; ids are 0 or more."""
    drawn: Callable[[int], int] | None = None
    """The token where the device does not decode greedily; None: the same."""
    accepts: Callable[[int], int] = lambda _step: 1
    """Tokens that step number ``n`` of a sequence yields where its draft is the device's own."""
    last_prompt_token: int = 9
    dies_at: int | None = None
    """The step, counted over the device's life, at which it fails for good."""


@dataclass(slots=True)
class FakeSequence:
    """The sequence on the device."""

    tokens: int
    """Of the prompt."""
    position: int | None = None
    mode: str | None = None
    steps: int = 0


class FakeDevice:
    """What the GPUs hold, and a step on it."""

    def __init__(self, model: FakeModel, *, with_mtp: bool, step_tokens: int, window: int) -> None:
        self.model = model
        self.with_mtp = with_mtp
        self.step_tokens = step_tokens
        self.max_seq_len = window
        self.sequence: FakeSequence | None = None
        self.greedy = False
        self.forwards = 0
        self.seeds: list[int] = []
        self.draft = torch.full((1, step_tokens), _JUNK, dtype=torch.int32)
        self._owner: int | None = None
        self._dead = False

    def touched(self) -> None:
        """Every call passes here."""
        self._owner = self._owner or get_ident()
        if self._owner != get_ident():
            raise Misuse("the device is called from two threads")
        if self._dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def present(self) -> FakeSequence:
        """The sequence; there must be one."""
        self.touched()
        if self.sequence is None:
            raise Misuse("no cache has been injected")
        return self.sequence

    def select(self, mode: str, num_valid_tokens: int) -> None:
        """Put the device into a mode: ``mtp`` or ``plain``; with valid tokens, prefill."""
        sequence = self.present()
        if sequence.position is None:
            raise Misuse("a mode is selected before set_cur_pos")
        if mode == "mtp" and not self.with_mtp:
            raise Misuse("MTP is selected, and the weights were loaded without")
        sequence.mode = mode if num_valid_tokens == 0 else "prefill"

    def stepping(self, mode: str) -> FakeSequence:
        """Begin a step, which must be one of the selected mode."""
        sequence = self.present()
        if sequence.mode != mode:
            raise Misuse(f"a step of {mode}, and the device is in mode {sequence.mode}")
        if self.forwards == self.model.dies_at:
            self._dead = True
            self.touched()
        self.forwards += 1
        sequence.steps += 1
        return sequence

    def truth(self, position: int) -> int:
        """The token at ``position``, the prompt's last or one of the answer."""
        index = position - self.present().tokens
        if index < 0:
            return self.model.last_prompt_token
        if index == 0 or self.greedy or self.model.drawn is None:
            return self.model.token(index)
        return self.model.drawn(index)

    def mtp_step(self, draft: Sequence[int]) -> list[int]:
        """Verify ``draft``, leave the next one in the buffer; the accepted tokens."""
        sequence = self.stepping("mtp")
        at = self._fed(sequence.position, draft[0], self.step_tokens)
        right = [token == self.truth(at + ahead) for ahead, token in enumerate(draft)]
        count = right.index(False) if False in right else len(right)
        sequence.position = at + count
        coming = self.model.accepts(sequence.steps)
        guesses = [
            self.truth(at + count + ahead) + (ahead >= coming) for ahead in range(self.step_tokens)
        ]
        self.draft.copy_(torch.tensor([guesses]))
        return [self.truth(at + 1 + ahead) for ahead in range(count)]

    def plain_step(self, token: int) -> int:
        """Take a step without MTP; its token."""
        sequence = self.stepping("plain")
        # Without MTP the position is the newest token's in the cache, not the next one's.
        at = self._fed((sequence.position or 0) + 1, token, 1)
        sequence.position = at
        return self.truth(at + 1)

    def _fed(self, position: int | None, token: int, rows: int) -> int:
        at = position or 0
        if at + rows > self.max_seq_len:
            raise Misuse(f"rows {at} to {at + rows - 1} of a cache of {self.max_seq_len}")
        if token != self.truth(at):
            raise Misuse(f"fed with {token} at position {at}, where {self.truth(at)} stands")
        return at


class _Layer:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.max_seq_len = device.max_seq_len

    def set_sampling_seed(self, seed: int, *, with_mtp: bool | None = None) -> None:
        """Note the seed."""
        self._device.touched()
        self._device.seeds.append(seed)

    def get_next_draft_tokens(self, device_id: int = 0) -> torch.Tensor:
        """The live buffer."""
        if self._device.present().steps == 0:
            raise Misuse("no step has made a draft")
        return self._device.draft

    def reset_sequence(self) -> None:
        """Forget the sequence."""
        self._device.touched()
        self._device.sequence = None

    def _own(self, draft: torch.Tensor) -> list[int]:
        shape = (1, self._device.step_tokens)
        if tuple(draft.shape) != shape or draft.dtype != torch.int32:
            raise Misuse(f"a draft of {draft.dtype} {tuple(draft.shape)}, not int32 {shape}")
        if draft.untyped_storage().data_ptr() == self._device.draft.untyped_storage().data_ptr():
            raise Misuse("the live draft buffer is fed back; it needs a copy")
        return _ids(draft)


class FakeChainLayer(_Layer):
    """GLM-5's layer: chains, with MTP and without."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device)
        self._chain: tuple[str, list[int], list[int]] | None = None

    def set_prefill_valid_tokens(
        self, num_valid_tokens: int, *, with_mtp: bool | None = None
    ) -> None:
        """Select decode (0) or prefill, of the loop that is meant."""
        mtp = self._device.with_mtp if with_mtp is None else with_mtp
        self._device.select("mtp" if mtp else "plain", num_valid_tokens)
        self._chain = None

    def show_hands(self, prev_draft_tokens: torch.Tensor, ar_steps: int = 1) -> None:
        """Take a chain of MTP steps."""
        draft = self._own(prev_draft_tokens)
        chain = [self._device.mtp_step(draft)]
        while len(chain) < _checked(ar_steps):
            chain.append(self._device.mtp_step(_ids(self._device.draft)))
        ids = [token for step in chain for token in step]
        self._chain = ("mtp", ids, [len(step) for step in chain])

    def show_hands_no_mtp(self, prev_token: torch.Tensor, ar_steps: int = 1) -> None:
        """Take a chain of steps without MTP."""
        if tuple(prev_token.shape) != (1,) or prev_token.dtype != torch.int32:
            raise Misuse(f"a token of {prev_token.dtype} {tuple(prev_token.shape)}, not int32 (1,)")
        ids = [self._device.plain_step(_ids(prev_token)[0])]
        while len(ids) < _checked(ar_steps):
            ids.append(self._device.plain_step(ids[-1]))
        self._chain = ("plain", ids, [1] * len(ids))

    def ar_accepted_tokens(self, dev: int = 0) -> torch.Tensor:
        """The MTP chain's ids behind their number."""
        return self._read("mtp")[0]

    def ar_num_accepted(self, dev: int = 0) -> torch.Tensor:
        """The MTP chain's accepted lengths behind their number."""
        return self._read("mtp")[1]

    def ar_accepted_tokens_no_mtp(self, dev: int = 0) -> torch.Tensor:
        """The plain chain's ids behind their number."""
        return self._read("plain")[0]

    def reset_sequence(self) -> None:
        """Forget the sequence, and the chain."""
        super().reset_sequence()
        self._chain = None

    def _read(self, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
        self._device.touched()
        if self._chain is None or self._chain[0] != mode:
            raise Misuse(f"no chain of {mode} has run")
        return _buffer(self._chain[1]), _buffer(self._chain[2])


class FakeStepLayer(_Layer):
    """DeepSeek-V3.2's layer: one step at a time."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device)
        self._accepted: list[int] = []

    def set_prefill_valid_tokens(self, num_valid_tokens: int) -> None:
        """Select decode (0) or prefill; there is no choice of loops."""
        self._device.select("mtp", num_valid_tokens)

    def forward(self, token_id: torch.Tensor) -> list[list[list[torch.Tensor]]]:
        """Take one step."""
        if self._device.with_mtp:
            self._accepted = self._device.mtp_step(self._own(token_id))
            return []
        if self._device.present().mode is None:
            self._device.select("plain", 0)
        if token_id.dim():
            raise Misuse(f"a token of shape {tuple(token_id.shape)}, not a scalar")
        token = self._device.plain_step(int(token_id))
        intermediates = [torch.full((1, 1), _JUNK, dtype=torch.int32) for _ in range(TOKEN_OUT)]
        return [[[*intermediates, torch.tensor([[token]], dtype=torch.int32)]]]

    def get_num_accepted(self, device_id: int = 0) -> int:
        """The last step's accepted length."""
        if not self._accepted:
            raise Misuse("no step has accepted anything")
        return len(self._accepted)

    def get_predicted_tokens(self, device_id: int = 0) -> torch.Tensor:
        """The last step's ids, and junk where none was accepted."""
        self._device.touched()
        rest = [_JUNK] * (self._device.step_tokens - len(self._accepted))
        return torch.tensor([self._accepted + rest], dtype=torch.int32)


def _ids(tensor: torch.Tensor) -> list[int]:
    return cast("list[int]", tensor.flatten().tolist())  # pyright: ignore[reportUnknownMemberType] -- untyped in torch


def _buffer(numbers: list[int]) -> torch.Tensor:
    room = [_JUNK] * 7  # a real buffer is longer than what was written into it
    return torch.tensor([[len(numbers), *numbers, *room]], dtype=torch.int32)


def _checked(ar_steps: int) -> int:
    if not 1 <= ar_steps <= 1024:
        raise Misuse(f"a chain of {ar_steps} steps; the device takes 1 to 1024")
    return ar_steps
