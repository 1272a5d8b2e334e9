"""What a started server prints: an address and a line that can be pasted."""

from __future__ import annotations

import json
import shlex

import pytest

from tilert_stream.model.byte_tokenizer import EOS, byte_tokenizer
from tilert_stream.model.card import ModelCard
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.serve.announcement import describe


def card(*, chat: bool) -> ModelCard:
    tokenizer = byte_tokenizer()
    return ModelCard(
        names=("small",),
        tokenizer=tokenizer,
        max_seq_len=128,
        vocab_size=tokenizer.vocab_size,
        created=0,
        chat_template=ChatTemplate("{{ messages[0].content }}") if chat else None,
        eos_ids=frozenset({EOS}),
    )


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("::", "http://localhost:8000"),
        ("::1", "http://[::1]:8000"),
    ],
)
def test_the_line_asks_the_server_for_a_stream(host: str, url: str) -> None:
    said = describe((host, 8000), card(chat=True))
    assert said.startswith(f"Serving small at {url}/v1\n")
    words = shlex.split(said.splitlines()[2])
    assert words[:3] == ["curl", "-N", f"{url}/v1/chat/completions"]
    body = json.loads(words[-1])
    assert body["stream"] is True
    assert body["temperature"] == 0


def test_without_a_chat_template_it_asks_for_a_completion() -> None:
    words = shlex.split(describe(("127.0.0.1", 1), card(chat=False)).splitlines()[2])
    assert words[2] == "http://127.0.0.1:1/v1/completions"
    assert json.loads(words[-1])["prompt"]


def test_a_unix_socket_is_named_to_curl() -> None:
    said = describe(("/run/small.sock", None), card(chat=True))
    assert said.startswith("Serving small at Unix socket /run/small.sock\n")
    assert "--unix-socket /run/small.sock http://localhost/v1/chat/completions" in said


def test_a_key_is_asked_for_and_never_shown() -> None:
    line = describe(("127.0.0.1", 1), card(chat=True), keyed=True).splitlines()[2]
    assert '-H "authorization: Bearer $API_KEY"' in line, "in quotes that let the shell put it in"
    assert "authorization" not in describe(("127.0.0.1", 1), card(chat=True))


def test_a_certificate_of_ones_own_is_taken() -> None:
    line = describe(("127.0.0.1", 1), card(chat=True), secure=True).splitlines()[2]
    assert shlex.split(line)[:4] == ["curl", "-N", "-k", "https://127.0.0.1:1/v1/chat/completions"]
