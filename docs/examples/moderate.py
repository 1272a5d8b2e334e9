"""A stage that awaits: it gets a task and a bounded channel of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tilert_stream import Finished, TextDelta
from tilert_stream.abc import Receive, Send


class Moderate:
    """Asks ``allowed`` about the text so far; a refusal ends the answer.

    Keeps its state in ``run``, so that one object can serve every request.
    """

    def __init__(self, allowed: Callable[[str], Awaitable[bool]]) -> None:
        self._allowed = allowed

    async def run(self, receive: Receive[TextDelta], send: Send[TextDelta]) -> None:
        text = ""
        async for delta in receive:
            text += delta.text
            if not await self._allowed(text):
                await send(Finished("content_filter"))
                return
            await send(delta)
