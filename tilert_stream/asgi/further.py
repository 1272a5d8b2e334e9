"""The paths beside completions: a model, tokenizing, the API described, and what is not served.

In: the model's card and the keys. Out: routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from ..errors import EndpointNotServed
from ..openai.encoding import dumps
from ..openai.openapi import describe_api, docs_page
from ..openai.tokenizing import detokenize, tokenize
from .endpoint import Endpoint
from .request_body import check_media_type, parse_body, read_body
from .response import JSONBody

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from ..model.card import ModelCard
    from .auth import KeyRing
    from .endpoint import Handler

__all__ = ("further_routes",)

NOT_SERVED: Final = {
    "/v1/responses": "OpenAI's Responses API is not served here; use /v1/chat/completions",
    "/v1/messages": "Anthropic's Messages API is not served here; use /v1/chat/completions",
}
HTML: Final = ((b"content-type", b"text/html; charset=utf-8"),)


def further_routes(card: ModelCard, keys: KeyRing, max_body_bytes: int) -> list[Route]:
    """The routes."""

    def answering(make: Callable[[bytes, ModelCard], Mapping[str, object]]) -> Handler:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            keys.check(scope["headers"])
            check_media_type(scope["headers"])
            body = await read_body(scope, receive, max_body_bytes)
            made = await parse_body(make, body, card)
            await JSONBody(dumps(made))(scope, receive, send)

        return answer

    def refusing(message: str) -> Handler:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            keys.check(scope["headers"])
            raise EndpointNotServed(message)

        return answer

    async def description(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONBody(dumps(describe_api(card)))(scope, receive, send)

    async def docs(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONBody(docs_page(describe_api(card)).encode(), headers=HTML)(scope, receive, send)

    return [
        Route("/tokenize", Endpoint(POST=answering(tokenize))),
        Route("/detokenize", Endpoint(POST=answering(detokenize))),
        Route("/openapi.json", Endpoint(GET=description)),
        Route("/docs", Endpoint(GET=docs)),
        *(
            Route(path, Endpoint(POST=refusing(message), GET=refusing(message)))
            for path, message in NOT_SERVED.items()
        ),
    ]
