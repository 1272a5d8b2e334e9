"""vLLM's scheduler as the connector sees it: requests, blocks and steps, scripted by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilert_stream.nodes.vllm.types import SamplingParams


@dataclass
class Sampling:
    extra_args: Mapping[str, object] | None


@dataclass
class New:
    req_id: str
    prompt_token_ids: list[int] | None
    sampling_params: SamplingParams | None
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass
class Cached:
    req_ids: list[str] = field(default_factory=list[str])
    resumed_req_ids: set[str] = field(default_factory=set[str])
    new_block_ids: list[tuple[list[int], ...] | None] = field(
        default_factory=list["tuple[list[int], ...] | None"]
    )
    num_computed_tokens: list[int] = field(default_factory=list[int])


@dataclass
class Output:
    scheduled_new_reqs: list[New] = field(default_factory=list[New])
    scheduled_cached_reqs: Cached = field(default_factory=Cached)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict[str, int])

    def new(
        self,
        request_id: str,
        prompt: list[int] | None,
        *,
        blocks: list[int],
        scheduled: int,
        computed: int = 0,
        params: object = None,
    ) -> Output:
        """A request that the workers do not know yet."""
        sampling = Sampling({"kv_transfer_params": params} if params is not None else None)
        self.scheduled_new_reqs.append(New(request_id, prompt, sampling, (blocks,), computed))
        self.num_scheduled_tokens[request_id] = scheduled
        return self

    def more(
        self,
        request_id: str,
        *,
        computed: int,
        scheduled: int,
        blocks: list[int] | None = None,
        resumed: bool = False,
    ) -> Output:
        """A request that they know."""
        cached = self.scheduled_cached_reqs
        cached.req_ids.append(request_id)
        cached.new_block_ids.append(None if blocks is None else (blocks,))
        cached.num_computed_tokens.append(computed)
        if resumed:
            cached.resumed_req_ids.add(request_id)
        self.num_scheduled_tokens[request_id] = scheduled
        return self


@dataclass
class Status:
    name: str


@dataclass
class Finished:
    request_id: str
    status: Status
    kv_transfer_params: Mapping[str, object] | None = None


def finished(
    request_id: str,
    status: str = "FINISHED_LENGTH_CAPPED",
    params: Mapping[str, object] | None = None,
) -> Finished:
    return Finished(request_id, Status(status), params)
