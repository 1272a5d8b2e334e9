"""The same pipeline without HTTP: text as an async generator."""

from __future__ import annotations

from contextlib import aclosing

from tilert_stream import GenerateRequest, Limits
from tilert_stream.asgi import App


async def tell(llm: App, prompt: str, max_tokens: int) -> str:
    request = GenerateRequest(
        id="1",
        prompt_ids=llm.card.tokenizer.encode(prompt, add_special_tokens=True),
        limits=Limits(max_tokens, eos_ids=llm.card.eos_ids),
    )
    text = ""
    async with aclosing(llm.service.stream(request)) as deltas:
        async for delta in deltas:
            text += delta.text  # here it would be shown as it comes
    return text
