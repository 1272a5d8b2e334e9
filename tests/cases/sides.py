"""One process, a cluster of real nodes, and a router before scripted ones: what a case is put to.

In: a script of the engines, or two nodes. Out: an app on the tokenizer BYTE that answers; its id
259 is "</think>", as one token.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
from tokenizers import Tokenizer

from tests.cases.asking import EOS, LIMIT, TEMPLATE
from tests.nodes.routing import Host
from tests.pd.cluster import Cluster
from tests.tokenizers import families
from tilert_engine.layouts.scripted import ScriptedLayout
from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
from tilert_stream.asgi import App
from tilert_stream.config import RouterConfig
from tilert_stream.events import PLAIN_CAPABILITIES
from tilert_stream.model.card import ModelCard
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.model.tokenizer import TextTokenizer
from tilert_stream.nodes.local import local_service
from tilert_stream.serve import router
from tilert_stream.serve.front import Front
from tilert_stream.serve.request_options import choose_output
from tilert_stream.testing.pd_nodes import ScriptedPrefillNode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import pytest
    from starlette.types import ASGIApp

    from tilert_stream.testing.pd_nodes import ScriptedDecodeNode

LONGEST: Final = 9000
THINK_END: Final = 259


def _tokenizer() -> TextTokenizer:
    copy = Tokenizer.from_str(families.library("BYTE").to_str())
    copy.add_tokens(["</think>"])  # pyright: ignore[reportUnknownMemberType] - the library has no argument types
    return TextTokenizer(copy)


TOKENIZER: Final = _tokenizer()


def front(template: str) -> Front:
    """What clients see of the model."""
    card = ModelCard(
        names=("byte",),
        tokenizer=TOKENIZER,
        max_seq_len=LONGEST,
        vocab_size=TOKENIZER.vocab_size,
        created=1_700_000_000,
        chat_template=ChatTemplate(template),
        eos_ids=frozenset({EOS}),
        capabilities=PLAIN_CAPABILITIES,
    )
    return Front(card, TOKENIZER)


class Model:
    """Engines by script, as a node loads them."""

    def __init__(self, script: Script, template: str) -> None:
        self.front = front(template)
        self.prefill = ScriptedPrefill(script, max_seq_len=LONGEST)
        self.decode = ScriptedDecode(script, slots=1, max_seq_len=LONGEST)
        self.layout = ScriptedLayout(LONGEST)


def _have_routers_load(loaded: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration names this tokenizer."""

    def load(_config: RouterConfig) -> Front:
        return loaded

    monkeypatch.setattr(router, "load_front", load)


@asynccontextmanager
async def answering(
    side: str,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    *,
    parser: str = "none",
    template: str = TEMPLATE,
) -> AsyncGenerator[App]:
    """An app whose engines follow ``script``; in the end nothing is held anywhere (INV-2).

    :param side: ``one`` process, or ``split``: a router, a prefill node and a decode node.
    :param parser: of its answers, by name.
    """
    model = Model(script, template)
    config = RouterConfig(model="bytes", output_parser=parser)
    if side == "one":
        reader, card = choose_output(config, model.front.card)
        app = App(local_service(model.prefill, model.decode, TOKENIZER, parser=reader), card)
        with anyio.fail_after(LIMIT):
            async with app.lifespan():
                yield app
                assert app.service.ledger.counts == {}
        assert model.decode.busy == {}
        return
    _have_routers_load(model.front, monkeypatch)
    cluster = Cluster(
        prefill_model=model,
        decode_models=[Model(script, template)],
        transport="memory",
        router_options={"output_parser": parser},
    )
    async with cluster.running():
        yield cluster.router
        await cluster.idle()


@asynccontextmanager
async def routing_to(
    prefill: ScriptedPrefillNode | ASGIApp,
    decode: ScriptedDecodeNode,
    monkeypatch: pytest.MonkeyPatch,
    *,
    prepare: Callable[[Host, Host], object] = lambda _prefill, _decode: None,
    template: str = TEMPLATE,
    **options: Any,
) -> AsyncGenerator[App]:
    """A router before nodes that say what a case has them say.

    :param prepare: called with both nodes' servers when they serve.
    :param options: of its configuration.
    """
    _have_routers_load(front(template), monkeypatch)
    hosts = Host(prefill), Host(decode)
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            try:
                for host in hosts:
                    await host.start(tasks)
                prepare(*hosts)
                config = RouterConfig(
                    model="bytes",
                    prefill_nodes=(f"http://127.0.0.1:{hosts[0].port}",),
                    decode_nodes=(f"127.0.0.1:{hosts[1].ctrl_port}:{hosts[1].port}",),
                    **options,
                )
                app = router.build_router(config)
                async with app.lifespan():
                    yield app
                    assert app.service.ledger.counts == {}
                    while not hosts[1].dead and decode.held:
                        await anyio.lowlevel.checkpoint()
                    while isinstance(prefill, ScriptedPrefillNode) and prefill.active:
                        await anyio.lowlevel.checkpoint()
            finally:
                for host in hosts:
                    host.server.cut()
