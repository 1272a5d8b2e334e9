"""The metrics that there are: the one table that counting, rendering and the documentation share.

Names as Prometheus asks for them: a prefix of ours, seconds, bytes and tokens as base units,
``_total`` on counters. vLLM's names are given where one means the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .histogram import GAP_BOUNDS, SECONDS_BOUNDS, TOKEN_BOUNDS

__all__ = ("METRICS", "PREFIX", "Metric")

PREFIX: Final = "tilert_stream_"


# Each is there once: equal to itself alone, and not hashed by all its fields at each count.
@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric; a label besides ``model`` only where its values are ours."""

    name: str
    """Without the prefix, a counter's without ``_total``."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    vllm: str | None = None
    """vLLM's name for it, in the same form."""
    label: str | None = None
    vllm_label: str | None = None
    """vLLM's name for the label."""
    bounds: tuple[float, ...] = ()
    """A histogram's."""

    @property
    def exposed(self) -> str:
        """The name as it is scraped."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")

    @property
    def exposed_vllm(self) -> str | None:
        """The name of vLLM as it is scraped."""
        suffix = "_total" if self.kind == "counter" else ""
        return None if self.vllm is None else self.vllm + suffix


RUNNING: Final = Metric(
    "requests_running",
    "gauge",
    "Requests that have a slot and have not ended.",
    "vllm:num_requests_running",
)
WAITING: Final = Metric(
    "requests_waiting",
    "gauge",
    "Requests that wait for a slot.",
    "vllm:num_requests_waiting",
)
TTFT: Final = Metric(
    "time_to_first_token_seconds",
    "histogram",
    "From a request's arrival to its first token.",
    "vllm:time_to_first_token_seconds",
    bounds=SECONDS_BOUNDS,
)
ITL: Final = Metric(
    "inter_token_latency_seconds",
    "histogram",
    "From one token to the next; tokens that come together share the time before them.",
    "vllm:inter_token_latency_seconds",
    bounds=GAP_BOUNDS,
)
TPOT: Final = Metric(
    "time_per_output_token_seconds",
    "histogram",
    "A request's mean time for a token after its first.",
    "vllm:request_time_per_output_token_seconds",
    bounds=GAP_BOUNDS,
)
DURATION: Final = Metric(
    "request_duration_seconds",
    "histogram",
    "From a request's arrival to its end, of those that were answered whole.",
    "vllm:e2e_request_latency_seconds",
    bounds=SECONDS_BOUNDS,
)
QUEUE: Final = Metric(
    "queue_seconds",
    "histogram",
    "The wait for a slot.",
    "vllm:request_queue_time_seconds",
    bounds=SECONDS_BOUNDS,
)
PREFILL: Final = Metric(
    "prefill_seconds",
    "histogram",
    "Computing the prompt, the call of a prefill node included.",
    "vllm:request_prefill_time_seconds",
    bounds=SECONDS_BOUNDS,
)
KV: Final = Metric(
    "kv_handoff_seconds",
    "histogram",
    "From the first token to the KV cache in its decode slot; on a prefill node, to its delivery.",
    bounds=SECONDS_BOUNDS,
)
DECODE: Final = Metric(
    "decode_seconds",
    "histogram",
    "From the first token to the last.",
    "vllm:request_decode_time_seconds",
    bounds=SECONDS_BOUNDS,
)
PROMPT_LENGTH: Final = Metric(
    "request_prompt_tokens",
    "histogram",
    "Tokens of a request's prompt.",
    "vllm:request_prompt_tokens",
    bounds=TOKEN_BOUNDS,
)
ANSWER_LENGTH: Final = Metric(
    "request_generation_tokens",
    "histogram",
    "Tokens of a request's answer.",
    "vllm:request_generation_tokens",
    bounds=TOKEN_BOUNDS,
)
PROMPT_TOKENS: Final = Metric(
    "prompt_tokens", "counter", "Tokens of computed prompts.", "vllm:prompt_tokens"
)
CACHED_TOKENS: Final = Metric(
    "prompt_tokens_cached",
    "counter",
    "Tokens of them that a prefix cache had, where prefill reports it.",
    "vllm:prompt_tokens_cached",
)
GENERATION_TOKENS: Final = Metric(
    "generation_tokens", "counter", "Tokens of answers.", "vllm:generation_tokens"
)
KV_BYTES: Final = Metric(
    "kv_handoff_bytes",
    "counter",
    "Bytes of KV caches that came from another process; on a prefill node, that it delivered.",
)
FINISHED: Final = Metric(
    "requests_finished",
    "counter",
    "Requests that were answered whole, by their finish reason.",
    "vllm:request_success",
    label="finish_reason",
    vllm_label="finished_reason",
)
CANCELLED: Final = Metric(
    "requests_cancelled",
    "counter",
    "Requests whose reader left, by how far they had come (`receiving`: not read yet).",
    label="phase",
)
ERRORS: Final = Metric(
    "request_errors",
    "counter",
    "Requests that were refused or failed, by error code.",
    label="code",
)
MTP_CALLS: Final = Metric(
    "mtp_verify_calls",
    "counter",
    "Steps that verified drafted tokens, where the engine reports them.",
    "vllm:spec_decode_num_drafts",
)
MTP_ACCEPTED: Final = Metric(
    "mtp_accepted_tokens",
    "counter",
    "Drafted tokens that such steps accepted, each step's own token apart.",
    "vllm:spec_decode_num_accepted_tokens",
)

METRICS: Final = (
    RUNNING,
    WAITING,
    TTFT,
    ITL,
    TPOT,
    DURATION,
    QUEUE,
    PREFILL,
    KV,
    DECODE,
    PROMPT_LENGTH,
    ANSWER_LENGTH,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    GENERATION_TOKENS,
    KV_BYTES,
    FINISHED,
    CANCELLED,
    ERRORS,
    MTP_CALLS,
    MTP_ACCEPTED,
)
"""All of them, in the order of a scrape."""
