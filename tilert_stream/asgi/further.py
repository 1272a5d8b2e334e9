"""The paths beside completions: a model, tokenizing, the API described, and what is not served.

In: the model's card and the keys. Out: routes.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from anyio import to_thread
from starlette.routing import Route

from ..errors import EndpointNotServed
from ..openai.encoding import dumps
from ..openai.openapi import describe_api, docs_page
from ..openai.tokenizing import detokenize, tokenize
from .endpoint import Endpoint
from .request_body import check_media_type, parse_body, read_body
from .response import JSON, JSONBody

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from ..model.card import ModelCard
    from .auth import KeyRing
    from .endpoint import Handler
    from .response import Headers

__all__ = ("further_routes",)

NOT_SERVED: Final = {
    "/v1/responses": "OpenAI's Responses API is not served here; use /v1/chat/completions",
    "/v1/messages": "Anthropic's Messages API is not served here; use /v1/chat/completions",
}
HTML: Final[Headers] = ((b"content-type", b"text/html; charset=utf-8"),)


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

    # Written once, off the event loop: it takes some ten milliseconds.
    @cache
    def description() -> bytes:
        return dumps(describe_api(card))

    @cache
    def page() -> bytes:
        return docs_page(describe_api(card)).encode()

    def written(write: Callable[[], bytes], content: Headers = JSON) -> Handler:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            body = await to_thread.run_sync(write)
            await JSONBody(body, headers=content)(scope, receive, send)

        return answer

    return [
        Route("/tokenize", Endpoint(POST=answering(tokenize))),
        Route("/detokenize", Endpoint(POST=answering(detokenize))),
        Route("/openapi.json", Endpoint(GET=written(description))),
        Route("/docs", Endpoint(GET=written(page, HTML))),
        *(
            Route(path, Endpoint(POST=refusing(message), GET=refusing(message)))
            for path, message in NOT_SERVED.items()
        ),
    ]
