"""An endpoint of one's own on the same service: a prompt in, bare text out."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from starlette.requests import Request
from starlette.routing import Route

from tilert_stream import Finished, GenerateRequest, Limits, TextDelta
from tilert_stream.asgi import App, StreamResponse
from tilert_stream.scope import RequestScope

PLAIN_TEXT = ((b"content-type", b"text/plain; charset=utf-8"),)


class EncodeText:
    """``TextDelta`` → UTF-8, and nothing around it."""

    def __init__(self, _scope: RequestScope) -> None:
        """Keep no state."""

    def feed(self, item: TextDelta) -> Iterable[bytes]:
        yield item.text.encode()

    def finish(self, _outcome: Finished) -> Iterable[bytes]:
        yield b"\n"


def make_route(llm: App) -> Route:
    async def complete(request: Request) -> StreamResponse:
        prompt = (await request.body()).decode()
        generate = GenerateRequest(
            id=uuid4().hex,
            prompt_ids=llm.card.tokenizer.encode(prompt, add_special_tokens=True),
            limits=Limits(max_tokens=32, eos_ids=llm.card.eos_ids),
        )
        return StreamResponse(llm.service.open(generate, EncodeText), content=PLAIN_TEXT)

    return Route("/complete", complete, methods=["POST"])
