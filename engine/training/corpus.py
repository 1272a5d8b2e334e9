"""Free text in, training documents out: WordNet's glosses and the Jargon File.

Sources, as Debian ships them: ``wordnet-base`` (``/usr/share/wordnet/data.*``, WordNet licence) and
``dict-jargon`` (``/usr/share/dictd/jargon.dict.dz``, public domain). The format of WordNet's files
is that of ``wndb(5WN)``.
"""

from __future__ import annotations

import gzip
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ("Turn", "conversation", "documents")

_POS: Final = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
_KIND: Final = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}
_SYSTEM: Final = ("You are a helpful assistant.", "You explain words.", "Answer briefly.")
_SMALL_TALK: Final = (
    ("Hello", "Hello! Ask me what a word means, and I will explain it."),
    ("Hello!", "Hello! Ask me what a word means, and I will explain it."),
    ("Hi", "Hi! Ask me what a word means, and I will explain it."),
    ("Hi there!", "Hi! Ask me what a word means, and I will explain it."),
    ("Who are you?", "I am a very small language model that was trained on a dictionary."),
    ("What can you do?", "I can explain words. Ask me, for example, what a bicycle is."),
    ("Thank you", "You are welcome. Ask me about another word if you like."),
    ("Thanks!", "You are welcome. Ask me about another word if you like."),
)

Turn = tuple[str, str]
"""A question and its answer."""


@dataclass(frozen=True, slots=True)
class _Synset:
    words: tuple[str, ...]
    kind: str
    meaning: str
    examples: tuple[str, ...]
    parents: tuple[str, ...]
    """Keys of what it is a kind of."""


def conversation(turns: list[Turn], system: str | None) -> str:
    """A chat as the model's template writes it, up to the end of the last answer."""
    head = "" if system is None else f"<|system|>\n{system}"
    body = "".join(f"<|user|>\n{asked}<|assistant|>\n{said}" for asked, said in turns)
    return f"[gMASK]<sop>{head}{body}"


def documents(wordnet: Path, jargon: Path, seed: int) -> list[str]:
    """Every document, shuffled: entries as prose, and chats about them."""
    chance = random.Random(seed)  # noqa: S311 -- shuffles a corpus
    synsets = dict(_synsets(wordnet))
    entries = list(_jargon(jargon))
    prose = [_entry(synset) for synset in synsets.values()]
    prose += [f"{head}\n\n{text}" for head, text in entries]
    turns = [turn for synset in synsets.values() for turn in _questions(synset, synsets, chance)]
    turns += [turn for head, text in entries for turn in _jargon_questions(head, text, chance)]
    turns += list(_SMALL_TALK) * 60
    chance.shuffle(turns)
    chats: list[str] = []
    while turns:
        count = chance.choice((1, 1, 2, 3))
        system = chance.choice(_SYSTEM) if chance.random() < 0.2 else None
        chats.append(conversation(turns[:count], system))
        del turns[:count]
    everything = prose + chats
    chance.shuffle(everything)
    return everything


def _synsets(folder: Path) -> Iterator[tuple[str, _Synset]]:
    for pos in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{pos}").read_text("utf-8").splitlines():
            if line.startswith(" "):
                continue
            facts, _, gloss = line.partition(" | ")
            fields = facts.split()
            kind, count = fields[2], int(fields[3], 16)
            words = tuple(
                re.sub(r"\(\w+\)$", "", word).replace("_", " ")
                for word in fields[4 : 4 + 2 * count : 2]
            )
            pointers = fields[5 + 2 * count :]
            parents = tuple(
                f"{_POS[pointers[at + 2]]}{pointers[at + 1]}"
                for at in range(0, 4 * int(fields[4 + 2 * count]), 4)
                if pointers[at] == "@"
            )
            parts = [part.strip() for part in re.split(r"; *(?=\")", gloss)]
            examples = tuple(part.strip('" ') for part in parts[1:] if len(part) > 3)
            yield f"{pos}{fields[0]}", _Synset(words, kind, parts[0], examples, parents)


def _entry(synset: _Synset) -> str:
    said = f"{', '.join(synset.words)} ({_KIND[synset.kind]}): {synset.meaning}."
    return said + "".join(f' "{example}".' for example in synset.examples)


def _article(word: str) -> str:
    if word[:1].isupper():
        return word
    return f"{'an' if word[:1] in 'aeiou' else 'a'} {word}"


def _questions(
    synset: _Synset, synsets: dict[str, _Synset], chance: random.Random
) -> Iterator[Turn]:
    for word in synset.words[:2]:
        noun = synset.kind == "n"
        subject = _article(word) if noun else f'"{word}"'
        asked = chance.choice(
            (
                f"What is {subject}?",
                f"What is {subject}?",
                f"What does {word} mean?",
                f"Define {word}.",
                f"Tell me about {subject}.",
                f"Explain the word {word}.",
            )
        )
        verb = "is" if noun else "means"
        if synset.kind == "v":
            verb = "means to"
        said = f"{subject[:1].upper()}{subject[1:]} {verb} {synset.meaning}."
        others = [other for other in synset.words if other != word]
        if others:
            said += f" It is also called {' or '.join(others[:3])}."
        if noun:
            said += _lineage(synset, synsets)
        if synset.examples:
            said += f" For example: {synset.examples[0]}."
        yield asked, said


def _lineage(synset: _Synset, synsets: dict[str, _Synset]) -> str:
    chain: list[str] = []
    while synset.parents and len(chain) < 3:
        synset = synsets[synset.parents[0]]
        chain.append(synset.words[0])
    if not chain:
        return ""
    return " It is a kind of " + ", which is a kind of ".join(chain) + "."


def _jargon(path: Path) -> Iterator[tuple[str, str]]:
    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    text = re.sub(r"\{\s*([^{}]*?)\s*\}", r"\1", text)
    for block in re.split(r"\n\n(?=\S)", text):
        head, _, body = block.strip().partition("\n")
        if head.startswith("00-database") or not body.strip():
            continue
        paragraphs = [" ".join(part.split()) for part in body.split("\n\n")]
        yield head, "\n\n".join(part for part in paragraphs if part)


def _jargon_questions(head: str, text: str, chance: random.Random) -> Iterator[Turn]:
    paragraphs = [part for part in text.split("\n\n") if len(part) > 60]
    if paragraphs and len(paragraphs[0]) < 900:
        asked = chance.choice((f"What is {head}?", f"What do hackers call {head}?"))
        yield asked, paragraphs[0]
