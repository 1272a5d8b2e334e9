"""``tiny-glm5`` in one process and divided between nodes; answers with all that they tell."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import orjson

from tests.cases.asking import Exchange
from tests.pd.cluster import Cluster
from tilert_engine.models import describe_tiny_glm5
from tilert_stream.asgi import App
from tilert_stream.config import RouterConfig, ServeConfig
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.nodes.local import local_service
from tilert_stream.serve import router
from tilert_stream.serve.front import Front, load_front
from tilert_stream.serve.models import Model, load_model
from tilert_stream.serve.request_options import capable, choose_output

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pytest

CONFIG = ServeConfig(model="tiny-glm5", max_seq_len=256, threads=1)
TOKENIZER = describe_tiny_glm5().tokenizer
ASKED = {"messages": [{"role": "user", "content": "What does the word river mean?"}]}


class Sides:
    """The models of both, loaded once."""

    def __init__(self) -> None:
        self.models = [load_model(CONFIG, slots=2) for _ in range(2)]
        self.front: Front = load_front(RouterConfig(model="tiny-glm5"))

    @property
    def model(self) -> Model:
        return self.models[0]

    def app(self, parser: str = "none") -> App:
        """One process."""
        model, front = self.model, self._front(parser)
        card = capable(front.card, model.prefill, model.decode)
        reader, card = choose_output(ServeConfig(output_parser=parser), card)
        service = local_service(model.prefill, model.decode, model.front.tokenizer, parser=reader)
        return App(service, card)

    def _front(self, parser: str) -> Front:
        return self.front if parser == "none" else _with_tools(self.front)

    @asynccontextmanager
    async def serving(
        self, side: str, monkeypatch: pytest.MonkeyPatch, *, parser: str = "none"
    ) -> AsyncGenerator[App]:
        """An app.

        :param side: ``one`` process, or ``split``.
        :param parser: of its answers; the template then shows tools.
        """
        front = self._front(parser)
        if side == "one":
            app = self.app(parser)
            with anyio.fail_after(60):
                async with app.lifespan():
                    yield app
                    assert app.service.ledger.counts == {}
            return

        def loaded(_config: RouterConfig) -> Front:
            return front

        # It is made inside the loop, where no file may be read.
        monkeypatch.setattr(router, "load_front", loaded)
        cluster = Cluster(
            prefill_model=self.models[0],
            decode_models=[self.models[1]],
            transport="memory",
            router_options={"output_parser": parser},
        )
        async with cluster.running():
            yield cluster.router
            await cluster.idle()


def _with_tools(front: Front) -> Front:
    template = ChatTemplate("{% if tools %}<tool_call>{% endif %}{{ messages[0].content }}")
    return replace(front, card=replace(front.card, chat_template=template))


@dataclass
class Choice:
    """One answer, streamed or not."""

    text: str = ""
    finish_reason: str | None = None
    logprobs: list[Any] = field(default_factory=list[Any])
    """A chat's entries."""
    lists: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """A completion's."""
    token_ids: list[int] = field(default_factory=list[int])
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Any] | None = None
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def take(self, choice: dict[str, Any]) -> None:
        part = choice.get("delta", choice.get("message", choice))
        self.text += part.get("content", part.get("text")) or ""
        calls: list[Any] = part.get("tool_calls", [])
        for call in calls:
            name: str | None = call["function"].get("name")
            arguments: str = call["function"]["arguments"]
            if name is None:
                name, before = self.calls.pop()
                arguments = before + arguments
            self.calls.append((name, arguments))
        logprobs: dict[str, Any] = choice.get("logprobs") or {}
        self.logprobs += logprobs.get("content", ())
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            if name in logprobs:
                self.lists.setdefault(name, []).extend(logprobs[name])
        self.token_ids += choice.get("token_ids", ())
        if "prompt_token_ids" in choice:
            assert self.prompt_token_ids is None, "it is told once"
            self.prompt_token_ids = choice["prompt_token_ids"]
        self.prompt_logprobs = choice.get("prompt_logprobs", self.prompt_logprobs)
        self.finish_reason = choice["finish_reason"] or self.finish_reason


@dataclass
class Told:
    """A whole response."""

    status: int
    choices: dict[int, Choice] = field(default_factory=dict[int, Choice])
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Any] | None = None
    error: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def only(self) -> Choice:
        (choice,) = self.choices.values()
        return choice

    def take(self, body: dict[str, Any]) -> None:
        self.error = body.get("error", self.error)
        self.prompt_token_ids = body.get("prompt_token_ids", self.prompt_token_ids)
        self.prompt_logprobs = body.get("prompt_logprobs", self.prompt_logprobs)
        self.usage = body.get("usage") or self.usage
        for choice in body.get("choices", ()):
            self.choices.setdefault(choice["index"], Choice()).take(choice)


async def tell(app: App, fields: dict[str, Any], *, stream: bool) -> Told:
    """Ask for a chat, or for a completion where there is a ``prompt``."""
    body = {"temperature": 0, "max_tokens": 12} | ({} if "prompt" in fields else ASKED) | fields
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    asked = Exchange(app, [orjson.dumps(body)], path)
    await asked.run()
    told = Told(asked.status)
    if asked.status != 200 or not stream:
        told.take(asked.json)
        return told
    events = asked.content.decode().split("\n\n")
    if events[-2:] == ["data: [DONE]", ""]:
        assert asked.complete
        del events[-2:]
    for event in events:
        if event:
            told.take(orjson.loads(event.removeprefix("data: ")))
    return told
