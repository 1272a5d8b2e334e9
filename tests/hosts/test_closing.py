"""Clients that read to the end of the connection: it comes right behind the answer, of every kind.

A server that reports a disconnect as soon as an answer is complete must not have its own closing of
the connection cancelled by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.hosts.answers import read
from tests.hosts.sites import Site
from tilert_engine.scripted import Script, echo
from tilert_stream.errors import EngineFault
from tilert_stream.testing.apps import ScriptedApp

KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "streamed": ({"stream": True, "max_tokens": 3}, 200),
    "streamed, one token": ({"stream": True, "max_tokens": 1}, 200),
    "plain": ({"stream": False, "max_tokens": 3}, 200),
    "streamed, failed before the first byte": ({"stream": True, "prompt": "fail"}, 500),
    "plain, failed": ({"stream": False, "prompt": "fail"}, 500),
    "refused": ({"stream": True, "max_tokens": 0}, 400),
}
CLIENTS: dict[str, dict[str, Any]] = {
    "Connection: close": {"version": "1.1", "headers": ("connection: close",)},
    "HTTP/1.0": {"version": "1.0", "headers": ()},
}


def _echo_or_fail(prompt_ids: Sequence[int], index: int) -> int:
    if bytes(prompt_ids) == b"fail":
        raise EngineFault("no memory for this prompt")
    return echo(prompt_ids, index)


async def test_dis_11_the_connection_ends_behind_the_answer(site: Site) -> None:
    async with site.serve(ScriptedApp(Script(token=_echo_or_fail))) as address:
        for kind, (fields, status) in KINDS.items():
            for name, options in CLIENTS.items():
                client = address.post(**fields, **options)
                answer = read(await client.read_all())
                assert (answer.status, answer.complete) == (status, True), (kind, name)
                assert answer.body
