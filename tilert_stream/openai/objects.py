"""OpenAI's response objects, as plain values ready for JSON.

In: envelope, text, counts, end. Out: dicts with the keys that the official SDK's types require;
an optional key that has nothing to say is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..events import Finished, PromptUsage
    from ..model.card import ModelCard
    from .envelope import Envelope

__all__ = ("model_list", "response", "usage")


def usage(prompt: PromptUsage, completion_tokens: int) -> dict[str, object]:
    """Three integers; ``cached_tokens`` only where prefill reports it.

    A report outside of 0 … ``prompt_tokens`` is cut to it: clients subtract one from the other.
    """
    counts: dict[str, object] = {
        "prompt_tokens": prompt.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt.prompt_tokens + completion_tokens,
    }
    if prompt.cached_tokens is not None:
        cached = min(max(prompt.cached_tokens, 0), prompt.prompt_tokens)
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


def response(
    envelope: Envelope,
    text: str,
    outcome: Finished,
    prompt: PromptUsage,
    completion_tokens: int,
) -> dict[str, object]:
    """A whole ``chat.completion`` or ``text_completion``."""
    choice: dict[str, object] = {"index": 0}
    if envelope.kind == "chat":
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    choice["logprobs"] = None
    choice["finish_reason"] = outcome.reason
    if outcome.stop_reason is not None:
        choice["stop_reason"] = outcome.stop_reason
    return {
        "id": envelope.id,
        "object": "chat.completion" if envelope.kind == "chat" else "text_completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": [choice],
        "usage": usage(prompt, completion_tokens),
    }


def model_list(cards: Iterable[ModelCard]) -> dict[str, object]:
    """The answer of ``GET /v1/models``: every name of every card is a model of its own.

    ``max_model_len`` (tokens, prompt and answer together) is vLLM's extension.
    """
    models = [
        {
            "id": name,
            "object": "model",
            "created": card.created,
            "owned_by": card.owned_by,
            "max_model_len": card.max_seq_len,
        }
        for card in cards
        for name in card.names
    ]
    return {"object": "list", "data": models}
