"""Whole requests without a server: an app that says what a case gives, and what it answers.

In: token ids, batch sizes, request fields. Out: the answer, read as a client reads it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.lowlevel
import orjson

from tests.tokenizers import families
from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
from tilert_stream.asgi import App
from tilert_stream.events import PLAIN_CAPABILITIES, Capability
from tilert_stream.model.card import ModelCard
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.nodes.local import local_service

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from starlette.types import ASGIApp, Message, Scope

    from tilert_stream.parsers.abc import OutputParser
    from tilert_stream.testing import Gate
    from tilert_stream.time_limits import TimeLimits

BYTE = families.tokenizer("BYTE")
EOS = families.EOS
LIMIT = 60
"""Seconds after which a test that hangs fails; nothing waits for it otherwise."""
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


class ByteApp(App):
    """An app on the tokenizer BYTE: ids 0-255 are bytes, 256 is U+FFFD, 257 " the", 258 the end."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        slots: int = 1,
        prefill: ScriptedPrefill | None = None,
        decode: ScriptedDecode | None = None,
        max_seq_len: int = 4096,
        queue_timeout: float = 30,
        template: str = TEMPLATE,
        time_limits: TimeLimits | None = None,
        parser: OutputParser | None = None,
        **options: Any,
    ) -> None:
        script = Script() if script is None else script
        self.decode_engine = decode or ScriptedDecode(script, slots=slots, max_seq_len=max_seq_len)
        service = local_service(
            prefill or ScriptedPrefill(script, max_seq_len=max_seq_len),
            self.decode_engine,
            BYTE,
            queue_timeout=queue_timeout,
            time_limits=time_limits,
            parser=parser,
        )
        card = ModelCard(
            names=("byte",),
            tokenizer=BYTE,
            max_seq_len=max_seq_len,
            vocab_size=BYTE.vocab_size,
            created=1_700_000_000,
            chat_template=ChatTemplate(template),
            eos_ids=frozenset({EOS}),
            capabilities=PLAIN_CAPABILITIES
            | frozenset[Capability]({"tools"} if parser and parser.tools else ()),
        )
        super().__init__(service, card, **options)


def says(*parts: bytes | int) -> Callable[[Sequence[int], int], int]:
    """A script's tokens, whatever the prompt: bytes and single ids, and the end token behind."""
    ids = tokens(*parts)
    return lambda _prompt, index: ids[index] if index < len(ids) else EOS


def tokens(*parts: bytes | int) -> list[int]:
    return [token for part in parts for token in ([part] if isinstance(part, int) else part)]


def batches(*sizes: int) -> Callable[[int], int]:
    """Decode's batch sizes; prefill's one token comes before, batches of one behind."""
    return lambda turn: sizes[turn] if turn < len(sizes) else 1


def at(turn: int, hook: Callable[[int], None]) -> Callable[[int], None]:
    """Call ``hook`` before that turn only."""

    def before_chain(number: int) -> None:
        if number == turn:
            hook(number)

    return before_chain


@dataclass
class Exchange:
    """One request to an app; ``leave`` is the client's going away."""

    app: ASGIApp
    body: list[bytes]
    path: str = "/v1/chat/completions"
    method: str = "POST"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    sent: list[Message] = field(default_factory=list["Message"])
    gone: anyio.Event = field(default_factory=anyio.Event)
    _grown: anyio.Event = field(default_factory=anyio.Event)

    async def receive(self) -> Message:
        if self.body:
            part = self.body.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.body)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message)
        self._grown.set()

    async def run(self) -> None:
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": self.headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await self.app(scope, self.receive, self.send)

    def leave(self) -> None:
        self.gone.set()

    @asynccontextmanager
    async def running(self, *gates: Gate) -> AsyncGenerator[None]:
        """Run beside the block; what never comes fails the test instead of holding it.

        A failure opens ``gates``: an app is not left before its engine's thread has come to an end.
        """
        try:
            with anyio.fail_after(LIMIT):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.run)
                    yield
        except BaseException:
            for gate in gates:
                gate.open()
            raise

    async def grown(self) -> None:
        """Wait until the next message has been sent."""
        self._grown = anyio.Event()
        await self._grown.wait()

    async def until(self, text: str) -> None:
        """Wait until the streamed text is ``text``: all of it, and no more."""
        while self.text != text:
            assert text.startswith(self.text), f"{self.text!r} is not the beginning of {text!r}"
            self._grown = anyio.Event()
            await self._grown.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def json(self) -> Any:
        return orjson.loads(self.content)

    @property
    def complete(self) -> bool:
        return not self.sent[-1].get("more_body", False)

    @property
    def chunks(self) -> list[Any]:
        """The JSON of every event but ``[DONE]``."""
        events = self.content.decode().split("\n\n")
        return [orjson.loads(event[6:]) for event in events if event and "[DONE]" not in event]

    @property
    def pieces(self) -> list[str]:
        """The text of every chunk that has some."""
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices", ())]
        return [text for choice in choices if (text := _text(choice))]

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def _text(choice: dict[str, Any]) -> str:
    part = choice.get("delta", choice.get("message", choice))
    return str(part.get("content", part.get("text", "")))


class Said(NamedTuple):
    """What an answer comes to, streamed or not."""

    text: str
    finish_reason: str
    completion_tokens: int
    stop_reason: int | str | None = None


def exchange(app: ASGIApp, fields: dict[str, Any], *, stream: bool = False) -> Exchange:
    """A chat of one message, or a completion where there is a ``prompt``; usage is asked for."""
    default: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}]}
    body: dict[str, Any] = ({} if "prompt" in fields else default) | fields
    if stream:
        body |= {"stream": True}
        body.setdefault("stream_options", {"include_usage": True})
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    return Exchange(app, [orjson.dumps(body)], path)


async def ask(app: ASGIApp, fields: dict[str, Any], *, stream: bool) -> Said:
    """The answer; a streamed one is checked for its order on the way."""
    asked = exchange(app, fields, stream=stream)
    await asked.run()
    assert (asked.status, asked.complete) == (200, True), asked.content
    if not stream:
        (choice,) = asked.json["choices"]
        return _said(_text(choice), choice, asked.json["usage"])
    assert asked.content.endswith(b"data: [DONE]\n\n")
    *others, end, usage = asked.chunks
    assert usage["choices"] == []
    ends = [chunk["choices"][0]["finish_reason"] for chunk in others]
    assert ends == [None] * len(ends), "the finish chunk is behind all text"
    assert not _text(end["choices"][0])
    return _said(asked.text, end["choices"][0], usage["usage"])


def _said(text: str, choice: dict[str, Any], usage: dict[str, int]) -> Said:
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["total_tokens"] == total
    return Said(
        text, choice["finish_reason"], usage["completion_tokens"], choice.get("stop_reason")
    )
