"""A server on the scripted engine until it is ended; its address is printed."""

from __future__ import annotations

import sys
from dataclasses import replace

import anyio

from tilert_stream.asgi import App
from tilert_stream.http import Server, ServerSettings
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.testing.apps import ScriptedApp

CONTEXT = 256
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"
)
"""As models' templates do, it makes a prompt of an empty message, too."""


async def main() -> None:
    scripted = ScriptedApp(name="scripted", max_seq_len=CONTEXT)
    app = App(scripted.service, replace(scripted.card, chat_template=ChatTemplate(TEMPLATE)))
    async with anyio.create_task_group() as tasks:
        settings = ServerSettings(port=0, access_log=False)
        ((host, port),) = await tasks.start(Server(app, settings).serve)
        sys.stdout.write(f"http://{host}:{port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main)
