"""OpenAI's response objects, as plain values ready for JSON.

In: envelope, text, counts, end. Out: dicts with the keys that the official SDK's types require;
an optional key that has nothing to say is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..events import Finished, PromptUsage
    from ..model.card import ModelCard
    from .envelope import Envelope

__all__ = (
    "choice_object",
    "model_list",
    "model_objects",
    "response",
    "token_choice",
    "tokens_head",
    "tool_call",
    "usage",
)


def usage(
    prompt: PromptUsage, completion_tokens: int, reasoning_tokens: int = 0
) -> dict[str, object]:
    """Three integers; ``cached_tokens`` only where prefill reports it.

    ``reasoning_tokens`` are among ``completion_tokens``, markers included, and only where there
    are some.

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
    if reasoning_tokens:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return counts


def choice_object(
    envelope: Envelope,
    text: str,
    outcome: Finished,
    *,
    reasoning: Mapping[str, str] | None = None,
    tool_calls: Iterable[Mapping[str, object]] = (),
    details: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """One of the ``choices`` of a ``chat.completion`` or ``text_completion``.

    ``content`` is null where there are calls and no text.

    :param reasoning: the thinking before the answer, by each name it is to have.
    :param tool_calls: as ``tool_call`` makes them.
    :param details: ``logprobs``, ``token_ids``: what is told of its tokens.
    """
    choice: dict[str, object] = {"index": envelope.index}
    if envelope.kind == "chat":
        calls = list(tool_calls)
        message: dict[str, object] = {"role": "assistant"}
        message["content"] = None if calls and not text else text
        message |= reasoning or {}
        if calls:
            message["tool_calls"] = calls
        choice["message"] = message
    else:
        choice["text"] = text
    choice["logprobs"] = None
    choice["finish_reason"] = outcome.reason
    if outcome.stop_reason is not None:
        choice["stop_reason"] = outcome.stop_reason
    choice.update(details or {})
    return choice


def response(
    envelope: Envelope,
    choices: Sequence[Mapping[str, object]],
    prompt: PromptUsage,
    completion_tokens: int,
    reasoning_tokens: int = 0,
) -> dict[str, object]:
    """A whole ``chat.completion`` or ``text_completion``, or the answer to token ids.

    :param completion_tokens: of all its choices.
    """
    if envelope.kind == "tokens":
        head = tokens_head(envelope)
    else:
        whole = "chat.completion" if envelope.kind == "chat" else "text_completion"
        head = {"id": envelope.id, "object": whole}
    rest: dict[str, object] = {
        "created": envelope.created,
        "model": envelope.model,
        "choices": choices,
        "usage": usage(prompt, completion_tokens, reasoning_tokens),
    }
    return head | rest


def tokens_head(envelope: Envelope) -> dict[str, object]:
    """What an answer to token ids begins with, whole or a chunk of it."""
    return {"request_id": envelope.id, "output_mode": "tokens"}


def token_choice(
    envelope: Envelope,
    ids: Iterable[int],
    outcome: Finished | None,
    logprobs: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """One of the ``choices`` of an answer to token ids.

    :param outcome: None: it goes on.
    """
    choice: dict[str, object] = {
        "index": envelope.index,
        "token_ids": list(ids),
        "logprobs": logprobs,
        "finish_reason": None if outcome is None else outcome.reason,
    }
    if outcome is not None and outcome.stop_reason is not None:
        choice["stop_reason"] = outcome.stop_reason
    return choice


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, object]:
    """One call in a whole message; ``arguments`` is JSON text."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def model_objects(card: ModelCard) -> list[dict[str, object]]:
    """Every name of ``card`` as a model of its own.

    ``max_model_len`` (tokens, prompt and answer together) is vLLM's extension, ``capabilities``
    (what not every model can do) ours.
    """
    return [
        {
            "id": name,
            "object": "model",
            "created": card.created,
            "owned_by": card.owned_by,
            "max_model_len": card.max_seq_len,
            "capabilities": sorted(card.capabilities),
        }
        for name in card.names
    ]


def model_list(cards: Iterable[ModelCard]) -> dict[str, object]:
    """The answer of ``GET /v1/models``."""
    return {"object": "list", "data": [each for card in cards for each in model_objects(card)]}
