"""INV-1 of the whole app: streamed and plain answers are those of an oracle that sees all at once.

The oracle goes token by token and looks at the whole text each time. It shares no code with the
library: characters are found by trying every beginning of one, stop strings by comparing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cases.asking import EOS, ByteApp, Said, ask
from tilert_engine.scripted import Script

BEGINNINGS: Final = frozenset(
    chr(code).encode()[:length]
    for code in range(0x80, 0x110000, 64)
    if not 0xD800 <= code < 0xE000
    for length in range(1, len(chr(code).encode()))
)
"""Every byte string that only the rest of a character can follow. The last six bits of a code
point stand in the last byte, which none of them has."""


@dataclass(frozen=True)
class Case:
    """A request, and what the engine makes of it; the end token for ever behind ``ids``."""

    ids: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    max_tokens: int = 40
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    skip_special: bool = True
    chat: bool = True

    @property
    def prompt(self) -> bytes:
        """A completion's ends inside a character."""
        return b"abc" if self.chat else b"A\xf0\x9f"

    @property
    def fields(self) -> dict[str, Any]:
        prompt: dict[str, Any] = {} if self.chat else {"prompt": list(self.prompt)}
        return prompt | {
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "stop": self.stop,
            "stop_token_ids": self.stop_ids,
            "include_stop_str_in_output": self.include_stop,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special,
        }

    def token(self, index: int) -> int:
        return self.ids[index] if index < len(self.ids) else EOS

    def spelled(self, token: int) -> bytes:
        if token < 256:
            return bytes((token,))
        special = b"" if self.skip_special else b"<|eos|>"
        return {256: "\ufffd".encode(), 257: b" the", EOS: special}[token]


def whole_characters(spelled: bytes) -> str:
    """The text that later bytes cannot change."""
    held = next((size for size in (3, 2, 1) if spelled[-size:] in BEGINNINGS), 0)
    return spelled[: len(spelled) - held].decode(errors="replace")


def continuation(prompt: bytes, text: str) -> str:
    """``text`` behind the prompt's own, whose last character the answer may have completed."""
    known = prompt.decode(errors="replace")
    return text[len(known) - (not text.startswith(known)) :]


def oracle(case: Case) -> Said:
    spelled, seen = case.prompt, ""
    for count in range(1, case.max_tokens + 1):
        token = case.token(count - 1)
        early = count < case.min_tokens
        by_id = token in case.stop_ids and not early
        by_eos = token == EOS and not case.ignore_eos and not early
        ends = by_id or by_eos
        if not ends:
            spelled += case.spelled(token)
        over = ends or count == case.max_tokens
        text = spelled.decode(errors="replace") if over else whole_characters(spelled)
        text = continuation(case.prompt, text)
        if count > case.min_tokens:
            for end in range(len(seen) + 1, len(text) + 1):
                found = [stop for stop in case.stop if text[:end].endswith(stop)]
                if found:
                    longest = max(found, key=len)
                    kept = end if case.include_stop else end - len(longest)
                    return Said(text[:kept], "stop", count, longest)
        if ends:
            return Said(text, "stop", count, token if by_id else None)
        seen = text
    return Said(seen, "length", case.max_tokens)


@dataclass
class Rig:
    """One app in an event loop of its own; its script plays the case of the moment."""

    portal: BlockingPortal
    case: Case = field(default=Case((65,)))
    app: ByteApp = field(init=False)

    def __post_init__(self) -> None:
        self.app = ByteApp(
            Script(
                token=lambda _prompt, index: self.case.token(index),
                chain=lambda turn: self.case.sizes[turn] if turn < len(self.case.sizes) else 1,
            )
        )

    def ask(self, case: Case, *, stream: bool) -> Said:
        async def answer() -> Said:
            said = await ask(self.app, case.fields, stream=stream)
            assert self.app.service.ledger.counts == {}
            return said

        self.case = case
        return self.portal.call(answer)


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    backend: str = request.param
    with start_blocking_portal(backend) as portal:
        made = Rig(portal)
        lifespan: AbstractAsyncContextManager[None] = made.app.lifespan()
        with portal.wrap_async_context_manager(lifespan):
            yield made


PIECES = [
    *("a", "é", "你", "😀", "END", "S", "\ufffd", "\u2028", " the"),
]
TOKEN = st.one_of(
    st.sampled_from([*b"aSEND", 0xC3, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 256, 257]),
    st.just(EOS),
    st.integers(0, 257),
)
IDS = st.lists(
    st.one_of(st.sampled_from(PIECES).map(lambda text: tuple(text.encode())), st.tuples(TOKEN)),
    max_size=20,
).map(lambda parts: tuple(token for part in parts for token in part)[:40])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ids = draw(IDS)
    max_tokens = draw(st.integers(1, len(ids) + 3))
    return Case(
        ids=ids,
        sizes=tuple(draw(st.lists(st.integers(1, 9), max_size=12))),
        max_tokens=max_tokens,
        min_tokens=draw(st.one_of(st.just(0), st.integers(0, max_tokens))),
        stop=tuple(draw(st.lists(st.sampled_from(STOPS), max_size=3))),
        stop_ids=tuple(draw(st.lists(st.sampled_from([*b"aS", 0x9F, 257, EOS]), max_size=2))),
        include_stop=draw(st.booleans()),
        ignore_eos=draw(st.booleans()),
        skip_special=draw(st.booleans()),
        chat=draw(st.booleans()),
    )


STOPS = ["END", "ND", "S", "aa", "aaE", "é", "\ufffd", "\ufffdS", " the", "<|eos|>", "thea"]


@settings(deadline=None, max_examples=400)
@given(case=cases())
@example(Case((*b"aa", 0xF0), stop=("\ufffd",), max_tokens=3))
@example(Case((*b"aa", 0xF0), stop=("\ufffd",), max_tokens=3, min_tokens=3))
@example(Case((0xF0, EOS, 0x9F, 0x98, 0x80), ignore_eos=True, max_tokens=5))
@example(Case((0xF0, EOS, 0x9F), ignore_eos=True, skip_special=False, max_tokens=3))
@example(Case(tuple(b"xENDND"), sizes=(2, 3), stop=("END", "ND"), min_tokens=4))
@example(Case(tuple(b"xEND"), sizes=(2, 3), stop=("ND", "END")))
@example(Case((*b"hi", EOS, *b"x"), sizes=(4,)))
def test_inv_1_streamed_and_plain_say_what_the_oracle_says(rig: Rig, case: Case) -> None:
    said = oracle(case)
    assert rig.ask(case, stream=True) == said
    assert rig.ask(case, stream=False) == said


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (Case(tuple(b"xENDy"), stop=("END",)), Said("x", "stop", 4, "END")),
        (Case((65, 0xF0, 0x9F), max_tokens=3), Said("A\ufffd", "length", 3)),
        (Case((65, 0xF0, 0x9F, 66), max_tokens=4), Said("A\ufffdB", "length", 4)),
        (Case((65,)), Said("A", "stop", 2)),
        (Case((65, 66), stop_ids=(66,)), Said("A", "stop", 2, 66)),
        (Case((0x8C, 0xB6, 66), chat=False), Said("🌶B", "stop", 4)),
        (Case((66,), chat=False), Said("B", "stop", 2)),
    ],
)
def test_the_oracle_itself(case: Case, said: Said) -> None:
    assert oracle(case) == said
