"""The bodies of ``POST /tokenize`` and ``POST /detokenize`` in, their answers out.

The shapes are vLLM's. Tokenizing a chat gives the very ids that a chat completion would be
computed from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import InvalidRequest, UnsupportedParameter
from .body import parse_object
from .build import check_model
from .chat import ChatRequest, chat_prompt
from .describe import describe
from .ids import Ids, check_ids
from .validation import WireModel, validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..model.card import ModelCard

__all__ = (
    "DetokenizeRequest",
    "TokenizeChatRequest",
    "TokenizeTextRequest",
    "detokenize",
    "tokenize",
)

REFUSED: Final = ("chat_template", "continue_final_message")


class TokenizeTextRequest(WireModel):
    """A text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatRequest(ChatRequest):
    """A chat: what a chat completion may say, of which only the prompt's part counts."""

    return_token_strs: bool | None = None


class DetokenizeRequest(WireModel):
    """Token ids; special ones have text."""

    model: str | None = None
    tokens: Ids


def tokenize(body: bytes, card: ModelCard) -> dict[str, object]:
    """``{count, max_model_len, tokens, token_strs}``; ``token_strs`` is null unless asked for.

    :raises ~tilert_stream.errors.TilertStreamError: of a kind with a 4xx status, and nothing else.
    """
    raw = parse_object(body)
    if "messages" in raw and "prompt" in raw:
        raise InvalidRequest("messages and prompt are given; send one of them", param="prompt")
    if "messages" in raw:
        _refuse(raw)
        chat = validate(TokenizeChatRequest, raw)
        check_model(chat.model, card)
        text, special = chat_prompt(chat, raw, card), chat.add_special_tokens is True
        wanted = chat.return_token_strs
    else:
        wire = validate(TokenizeTextRequest, raw)
        check_model(wire.model, card)
        text, special = wire.prompt, wire.add_special_tokens is not False
        wanted = wire.return_token_strs
    ids = card.tokenizer.encode(text, add_special_tokens=special)
    return {
        "count": len(ids),
        "max_model_len": card.max_seq_len,
        "tokens": ids,
        "token_strs": [card.tokenizer.tokens.get(i, "") for i in ids] if wanted else None,
    }


def detokenize(body: bytes, card: ModelCard) -> dict[str, object]:
    """``{prompt}``: the text of ``tokens``.

    :raises ~tilert_stream.errors.TilertStreamError: of a kind with a 4xx status, and nothing else.
    """
    wire = validate(DetokenizeRequest, parse_object(body))
    check_model(wire.model, card)
    check_ids(wire.tokens, "tokens", card.vocab_size)
    return {"prompt": card.tokenizer.decode(wire.tokens, skip_special_tokens=False)}


def _refuse(raw: Mapping[str, object]) -> None:
    for name in REFUSED:
        if raw.get(name):
            raise UnsupportedParameter(
                f"{name} is {describe(raw[name])}, which is not served: leave it out", param=name
            )
