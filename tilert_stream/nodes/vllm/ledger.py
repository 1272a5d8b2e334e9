"""The scheduler's side of the connector: what vLLM schedules → what its workers hand over.

In: each step's scheduler output, and the requests that end. Out: a ``StepWork`` a step: prompts
whose last token is computed in this step, with the blocks that hold them, and hand-overs that will
never come. A request's blocks are read once, when all of its prompt is (about to be) in them, so
that chunks, prefix-cache hits and preemption need no bookkeeping beyond the block table.

Everything here is plain data: it runs without vLLM.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from tilert_stream.cluster.prompt_digest import prompt_digest
from tilert_stream.errors import InvalidRequest

from ..hand_over.destination import DEFAULT_CTRL_PORT, destination_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..hand_over.destination import Destination
    from .types import CachedRequests, NewRequest, Request, SchedulerOutput

__all__ = ("Extraction", "Ledger", "StepWork", "Withdrawal")

logger = logging.getLogger(__name__)

_CUT_SHORT: Final = frozenset({"FINISHED_ABORTED", "FINISHED_ERROR", "FINISHED_IGNORED"})
"""Names of ``vllm.v1.request.RequestStatus`` after which nobody waits for a first token."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """A prompt whose KV cache is complete at the end of this step."""

    request_id: str
    """vLLM's own id."""
    destination: Destination
    seq_len: int
    """Tokens of the prompt."""
    last_token: int
    """The prompt's last id."""
    digest: str
    """Of the prompt's ids."""
    blocks: tuple[int, ...]
    """Of the paged cache, in the prompt's order."""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A hand-over that will not come, or has become pointless."""

    request_id: str
    destination: Destination
    reason: str
    extracted: bool = False
    """Its KV cache may be on its way, or there."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What the workers do after one forward pass."""

    extractions: tuple[Extraction, ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()


@dataclass(slots=True)
class _Prompt:
    """A request on its way through the scheduler."""

    destination: Destination
    ids: tuple[int, ...]
    blocks: list[int]


@dataclass(slots=True)
class Ledger:
    """Which requests are ours, and how far each is.

    :param block_size: tokens in a block of the paged cache.
    """

    block_size: int
    default_host: str | None = None
    default_port: int = DEFAULT_CTRL_PORT
    _prompts: dict[str, _Prompt] = field(init=False, default_factory=dict[str, _Prompt])
    """By vLLM's id; handed over ones are no longer here."""
    _handed: dict[str, Destination] = field(init=False, default_factory=dict[str, "Destination"])
    """Extracted, and not finished yet."""
    _withdrawals: list[Withdrawal] = field(init=False, default_factory=list[Withdrawal])
    """For the next step."""

    @property
    def open(self) -> int:
        """Requests that are ours and have not finished."""
        return len(self._prompts) + len(self._handed)

    def step(self, output: SchedulerOutput) -> StepWork:
        """Take what one step computes."""
        extractions: list[Extraction] = []
        for new in output.scheduled_new_reqs:
            self._begin(new)
            self._complete(
                extractions, new.req_id, new.num_computed_tokens, output.num_scheduled_tokens
            )
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            self._extend(cached, index)
            computed = cached.num_computed_tokens[index]
            self._complete(extractions, request_id, computed, output.num_scheduled_tokens)
        withdrawals, self._withdrawals = tuple(self._withdrawals), []
        return StepWork(tuple(extractions), withdrawals)

    def finish(self, request: Request) -> None:
        """Take the end of a request, whatever its state."""
        request_id, status = request.request_id, request.status.name
        prompt = self._prompts.pop(request_id, None)
        handed = self._handed.pop(request_id, None)
        if prompt is not None:
            reason = f"vLLM ended the request ({status}) before its prompt was computed"
            self._withdrawals.append(Withdrawal(request_id, prompt.destination, reason))
        elif status in _CUT_SHORT:
            reason = f"vLLM ended the request ({status})"
            waiting = self._destination(request_id, request.kv_transfer_params)
            if handed is not None:
                self._withdrawals.append(Withdrawal(request_id, handed, reason, extracted=True))
            elif waiting is not None:
                self._withdrawals.append(Withdrawal(request_id, waiting, reason))

    def _destination(
        self, request_id: str, params: Mapping[str, object] | None
    ) -> Destination | None:
        try:
            return destination_of(
                params, default_host=self.default_host, default_port=self.default_port
            )
        except InvalidRequest as error:
            # Nobody can be told: it is the address that cannot be read.
            logger.warning("request %s is not handed over: %s", request_id, error)
            return None

    def _begin(self, new: NewRequest) -> None:
        if new.req_id in self._handed:
            return
        known = self._prompts.get(new.req_id)
        if known is not None:
            # vLLM's second model runner is told of resumed requests as if they were new.
            known.blocks = list(new.block_ids[0])
            return
        destination = self._destination(new.req_id, _params_of(new))
        if destination is None:
            return
        if new.prompt_token_ids is None:
            reason = "its prompt is embeddings; a decode node takes token ids only"
            self._withdrawals.append(Withdrawal(new.req_id, destination, reason))
            return
        self._prompts[new.req_id] = _Prompt(
            destination, tuple(new.prompt_token_ids), list(new.block_ids[0])
        )

    def _extend(self, cached: CachedRequests, index: int) -> None:
        request_id, blocks = cached.req_ids[index], cached.new_block_ids[index]
        prompt = self._prompts.get(request_id)
        if prompt is None or blocks is None:
            return
        if request_id in cached.resumed_req_ids:
            prompt.blocks = list(blocks[0])
        else:
            prompt.blocks += blocks[0]

    def _complete(
        self,
        extractions: list[Extraction],
        request_id: str,
        computed: int,
        scheduled: Mapping[str, int],
    ) -> None:
        prompt = self._prompts.get(request_id)
        if prompt is None:
            return
        seq_len = len(prompt.ids)
        if computed + scheduled.get(request_id, 0) < seq_len:
            return
        blocks = prompt.blocks[: -(-seq_len // self.block_size)]
        del self._prompts[request_id]
        self._handed[request_id] = prompt.destination
        extractions.append(
            Extraction(
                request_id,
                prompt.destination,
                seq_len,
                prompt.ids[-1],
                prompt_digest(prompt.ids),
                tuple(blocks),
            )
        )


def _params_of(new: NewRequest) -> Mapping[str, object] | None:
    extra = new.sampling_params.extra_args if new.sampling_params is not None else None
    params = extra.get("kv_transfer_params") if extra else None
    return cast("Mapping[str, object]", params) if isinstance(params, dict) else None
