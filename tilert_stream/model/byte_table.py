"""What bytes each token stands for, and the characters that they add up to, one token at a time.

In: token ids. Out: text, as soon as it is certain. A ``ByteTable`` is made once a tokenizer;
every request has a ``ByteDecoder`` of its own, which holds at most three bytes: the beginning of
a character whose end has not come yet.

Two families of tokenizers spell in bytes:

* byte-level BPE (GPT-2 and its heirs): each character of a token stands for one byte;
* byte-fallback (SentencePiece): tokens are text, beside 256 tokens ``<0x00>`` … ``<0xFF>``.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .tokenizer import DecoderStep, TextTokenizer

__all__ = ("ByteDecoder", "ByteTable", "Spelling", "make_byte_table")

Spelling: TypeAlias = str | bytes
"""What a token stands for: text where its bytes are whole characters, the bytes where not."""

REPLACEMENT: Final = "\ufffd"
_TEXT: Final = frozenset({str})


@dataclass(frozen=True, slots=True)
class ByteTable:
    """Every token's spelling; shared by all requests."""

    all_tokens: Mapping[int, Spelling]
    without_specials: Mapping[int, Spelling]
    strip: str = ""
    """Characters that are cut once from the start of the whole text, if it begins with them."""

    def decoder(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> ByteDecoder:
        """The decoder of one request, ready for the first id behind the prompt."""
        spellings = self.without_specials if skip_special_tokens else self.all_tokens
        return ByteDecoder(spellings, prompt_ids, strip=self.strip)


class ByteDecoder:
    """Ids of one request in, text out; what goes in one id at a time never depends on batches.

    Bytes that cannot become a character give U+FFFD at once, one for each maximal part of a
    character that they began, as ``bytes.decode(errors="replace")`` does.

    :param spellings: ids that it lacks give no text.
    :param prompt_ids: their own text never comes out. Where they end inside a character, the ids
        behind them can still complete it; if they do not, its U+FFFD is the prompt's.
    :param strip: see ``ByteTable``.
    """

    __slots__ = ("_clear", "_held", "_of_prompt", "_spellings", "_strip")

    def __init__(
        self, spellings: Mapping[int, Spelling], prompt_ids: Sequence[int], *, strip: str = ""
    ) -> None:
        self._spellings = spellings
        self._held = _incomplete_tail(spellings, prompt_ids)
        self._of_prompt = bool(self._held)
        self._strip = strip and _strip_left(spellings, prompt_ids, strip)
        self._clear = not self._held and not self._strip

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes; often its own, sometimes none yet."""
        spelling = self._spellings.get(token_id, "")
        if self._clear and isinstance(spelling, str):
            return spelling
        text = self._decode(spelling)
        if self._strip and text:
            text = self._strip_start(text)
        self._clear = not self._held and not self._strip
        return text

    def push_all(self, ids: Sequence[int]) -> list[str]:
        """``push`` of each."""
        if self._clear:
            spellings = list(map(self._spellings.get, ids))
            if _TEXT.issuperset(map(type, spellings)):
                return cast("list[str]", spellings)
        return list(map(self.push, ids))

    def flush(self) -> str:
        """The end has come: what is held can never be completed."""
        return self._give_up()

    def _decode(self, spelling: Spelling) -> str:
        if isinstance(spelling, str):
            # Text begins with a whole character, so that held bytes cannot go on in it.
            return self._give_up() + spelling if spelling else ""
        text, self._held = _decode_start(self._held + spelling)
        if text and self._of_prompt:
            self._of_prompt = False
            text = text.removeprefix(REPLACEMENT)
        return text

    def _give_up(self) -> str:
        text = REPLACEMENT if self._held and not self._of_prompt else ""
        self._held = b""
        self._of_prompt = False
        return text

    def _strip_start(self, text: str) -> str:
        rest = text
        while self._strip and rest:
            if rest[0] != self._strip[0]:
                self._strip = ""
                break
            self._strip = self._strip[1:]
            rest = rest[1:]
        return rest


def _decode_start(data: bytes) -> tuple[str, bytes]:
    """The characters of ``data``, and the bytes at its end that may yet become one."""
    text, used = utf_8_decode(data, "replace", False)  # noqa: FBT003 - positional only
    rest = data[used:]
    if rest[:1] == b"\xed" and rest[1:] >= b"\xa0":
        # CPython waits for the third byte of an encoded surrogate, only to refuse all three.
        return text + REPLACEMENT * len(rest), b""
    return text, rest


def _incomplete_tail(spellings: Mapping[int, Spelling], prompt_ids: Sequence[int]) -> bytes:
    """The bytes at the end of the prompt that begin a character, at most three."""
    tail = b""
    for token_id in reversed(prompt_ids):
        spelling = spellings.get(token_id, "")
        if isinstance(spelling, bytes):
            tail = spelling + tail
            if len(tail) < 3:
                continue
        elif not spelling:
            continue
        break
    return _decode_start(tail)[1]


def _strip_left(spellings: Mapping[int, Spelling], prompt_ids: Sequence[int], strip: str) -> str:
    """What of ``strip`` is still to be cut, behind a prompt that may have no text of its own."""
    for token_id in prompt_ids:
        spelling = spellings.get(token_id, "")
        while spelling and strip:
            if spelling[0] != strip[0]:
                return ""
            spelling, strip = spelling[1:], strip[1:]
        if spelling or not strip:
            return ""
    return strip


# --- from a tokenizer's decoder to its table -------------------------------------------------


def make_byte_table(tokenizer: TextTokenizer) -> ByteTable | None:
    """The table of ``tokenizer``; None where its decoder does more than spell in bytes.

    Understood are ``Replace`` of fixed strings, then ``ByteLevel`` or ``ByteFallback``, then
    ``Fuse``, then ``Strip`` at the start; each of them may be missing. Takes about 0.1 s for
    129,280 entries.
    """
    steps = list(tokenizer.decoder_steps())
    if not steps:
        return None
    replacements = _take_replacements(steps)
    spell: Callable[[str], Spelling] = str
    fused = False
    if steps and steps[0]["type"] in _SPELL:
        kind = str(steps.pop(0)["type"])
        spell, fused = _SPELL[kind], kind == "ByteLevel"
    while steps and steps[0]["type"] == "Fuse":
        steps.pop(0)
        fused = True
    strip = ""
    # Before the tokens are fused, Strip would cut from every one of them.
    if steps and fused and steps[0]["type"] == "Strip" and steps[0]["stop"] == 0:
        step = steps.pop(0)
        strip = str(step["content"]) * cast("int", step["start"])
    if steps:
        return None
    all_tokens = _spell_all(tokenizer.tokens, replacements, spell)
    without = dict(all_tokens)
    for token_id in tokenizer.special_ids:
        del without[token_id]
    return ByteTable(all_tokens, without, strip)


def _take_replacements(steps: list[DecoderStep]) -> list[tuple[str, str]]:
    """Take the leading steps that replace one fixed string by another off ``steps``."""
    taken: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace":
        pattern = cast("dict[str, str]", steps[0]["pattern"]).get("String")
        if not pattern:
            break
        taken.append((pattern, str(steps.pop(0)["content"])))
    return taken


def _spell_all(
    tokens: Mapping[int, str],
    replacements: Sequence[tuple[str, str]],
    spell: Callable[[str], Spelling],
) -> dict[int, Spelling]:
    spellings: dict[int, Spelling] = {}
    for token_id, token in tokens.items():
        text = token
        for old, new in replacements:
            text = text.replace(old, new)
        spellings[token_id] = spell(text)
    return spellings


def _alphabet() -> dict[int, int]:
    """Character → byte of the byte-level alphabet (GPT-2's ``bytes_to_unicode``).

    Printable Latin-1 stands for itself; the other 68 bytes are U+0100 and up, in order. The
    Latin-1 characters that stand for nothing lead out of Latin-1, so that encoding fails there.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    nothing = dict.fromkeys(others, 0xFFFF)
    return nothing | {0x100 + place: byte for place, byte in enumerate(others)}


_ALPHABET: Final = _alphabet()


def _spell_byte_level(token: str) -> Spelling:
    """A token with a character outside the alphabet (an added one) stands for itself."""
    try:
        spelled = token.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return token
    return _as_text(spelled)


_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _spell_byte_fallback(token: str) -> Spelling:
    found = _BYTE_TOKEN.fullmatch(token)
    return token if found is None else _as_text(bytes.fromhex(found[1]))


def _as_text(spelled: bytes) -> Spelling:
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return spelled


_SPELL: Final[Mapping[str, Callable[[str], Spelling]]] = {
    "ByteLevel": _spell_byte_level,
    "ByteFallback": _spell_byte_fallback,
}
