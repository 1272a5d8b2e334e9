from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tilert_stream.model.decode_window import DecodeWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES = range(256)


class Bytes:
    """A decoder that reads each id as a byte, and counts how many it has read."""

    def __init__(self) -> None:
        self.read = 0
        self.longest = 0

    def __call__(self, ids: Sequence[int]) -> str:
        self.read += len(ids)
        self.longest = max(self.longest, len(ids))
        return bytes(ids).decode(errors="replace")


def run(ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    window = DecodeWindow(Bytes(), BYTES, prompt)
    return [*(window.push(token_id) for token_id in ids), window.flush()]


def test_utf_07_text_is_never_sent_twice() -> None:
    readings = {1: "A 世\ufffd", 2: "A 世a\ufffd", 3: "A 世ab"}
    window = DecodeWindow(lambda ids: readings[len(ids)], BYTES, ())
    sent = [window.push(1), window.push(2), window.push(3), window.flush()]
    assert sent == ["A 世", "a", "b", ""]


def test_what_a_decoder_rewrites_stays_as_it_was_sent() -> None:
    readings = {1: "do", 2: "do n", 3: "don't", 4: "don't go"}
    window = DecodeWindow(lambda ids: readings[len(ids)], BYTES, ())
    assert [window.push(n) for n in range(4)] == ["do", " n", "t", " go"]


def test_a_character_of_several_ids() -> None:
    text = "aé你😀 — end of a line that is longer than one window — 😀"
    assert "".join(run(text.encode())) == text
    assert run([0x41, 0xF0, 0x9F]) == ["A", "", "", "\ufffd"]


@pytest.mark.parametrize("length", range(1, 40))
def test_the_prompt_ends_inside_a_character(length: int) -> None:
    prompt = ("x" * length + "🌶").encode()
    assert run(prompt[-1:], prompt[:-1]) == ["🌶", ""]
    assert run(b"A", prompt[:-1]) == ["A", ""]
    assert run(b"", prompt[:-1]) == [""]


def test_a_long_run_of_bad_bytes_is_neither_held_nor_read_again() -> None:
    decode = Bytes()
    window = DecodeWindow(decode, BYTES, ())
    sent = [window.push(0x9F) for _ in range(2000)]
    assert sent[:3] == ["", "", ""]
    assert set(sent[3:]) == {"\ufffd"}
    assert window.flush() == "\ufffd" * 3
    assert decode.longest <= 24
    assert decode.read <= 2000 * 20


def test_unknown_ids_give_no_text() -> None:
    assert run([-1, 0x41, 256, 10**9]) == ["", "A", "", "", ""]
