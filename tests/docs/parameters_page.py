"""Writes ``docs/parameters.md``: every request field, and its answer on each engine.

    python -m tests.docs.parameters_page > docs/parameters.md

From the code's own declarations: the fields', and the engines' capabilities.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Final

from tests.engine.tilert.driving import FAMILIES, engine_on
from tilert_engine.scripted import Script, ScriptedDecode
from tilert_engine.torch.sampler import sampler_capabilities
from tilert_stream.abc import capabilities_of
from tilert_stream.openai.parameter import Parameter
from tilert_stream.openai.parameters import PARAMETERS
from tilert_stream.testing.tilert_fake import FakeModel

NAMES: Final = {"chat": "chat", "completion": "completions"}
HEAD: Final = """# Every parameter, on each engine

Written by `python -m tests.docs.parameters_page` from what the code declares; a test holds it
current. *Served* has its effect; *inert* is accepted and nothing follows; *refused* is answered
with 400 and the field's name, before anything is computed, unless its value asks for nothing
([which do](openai.md#what-a-field-gets)). A field that is not here is accepted and noted in the
debug log. `torch` is Llama and `tiny-glm5`; a router serves what its decode nodes can. *With a
parser*: where `--output-parser` reads calls and the chat template knows tools.

| field | endpoint | torch | tilert | scripted | |
|---|---|---|---|---|---|
"""


def engines() -> dict[str, Collection[str]]:
    tilert, _ = engine_on(FakeModel(token=lambda index: index), FAMILIES[0])
    scripted = ScriptedDecode(Script(), slots=1, max_seq_len=8)
    return {
        "torch": sampler_capabilities(None),
        "tilert": tilert.capabilities,
        "scripted": capabilities_of(scripted),
    }


def answer(parameter: Parameter, engine: str, able: Collection[str]) -> str:
    if parameter.answer != "served" or parameter.needs is None or parameter.needs in able:
        return parameter.answer
    if parameter.needs == "tools":
        return "with a parser"
    if parameter.needs == "grammar" and engine == "torch":
        return "with the extra `grammar`"
    return "refused"


def page() -> str:
    rows: list[str] = []
    for each in PARAMETERS:
        names = [NAMES[endpoint] for endpoint in each.endpoints]
        where = "both" if len(names) > 1 else names[0]
        cells = [answer(each, engine, able) for engine, able in engines().items()]
        rows.append(f"| `{each.name}` | {where} | {' | '.join(cells)} | {each.note} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(page())
