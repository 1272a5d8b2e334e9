"""Token ids become text: the first stage behind the mailbox.

In: ``TokenBatch``. Out: one ``TextDelta`` a batch, empty text included: its ids must be counted.
For every split into batches the joined text is the same.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from tilert_stream.events import TextDelta
from tilert_stream.model.byte_table import make_byte_table
from tilert_stream.model.decode_window import DecodeWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tilert_stream.abc import Transform
    from tilert_stream.events import Finished, TokenBatch
    from tilert_stream.model.tokenizer import TextTokenizer
    from tilert_stream.scope import RequestScope

__all__ = ("Detokenize", "Detokenizer", "IncrementalDecoder")


class IncrementalDecoder(Protocol):
    """Ids in, text out, each character once, in order. Raises for no id."""

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes."""
        ...

    def push_all(self, ids: Sequence[int]) -> list[str]:
        """``push`` of each."""
        ...

    def flush(self) -> str:
        """What was held back. Called once, at the end."""
        ...


class Detokenize:
    """Makes a ``Detokenizer`` for each request.

    Tokenizers that spell in bytes (byte-level, byte-fallback) go through a table of their tokens,
    made here once; the others through a window of ids that is decoded again with each one.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._table = make_byte_table(tokenizer)
        self._decode = partial(tokenizer.decode, skip_special_tokens=False)
        self._all_tokens = frozenset(tokenizer.tokens)
        self._without_specials = self._all_tokens - tokenizer.special_ids

    def __call__(self, scope: RequestScope) -> Transform[TokenBatch, TextDelta]:
        """The detokenizer of one request, ready behind its prompt."""
        request = scope.request
        return Detokenizer(
            self.decoder(request.prompt_ids, skip_special_tokens=request.skip_special_tokens)
        )

    def decoder(
        self, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> IncrementalDecoder:
        """A decoder for what comes behind ``prompt_ids``."""
        if self._table is not None:
            return self._table.decoder(prompt_ids, skip_special_tokens=skip_special_tokens)
        known = self._without_specials if skip_special_tokens else self._all_tokens
        return DecodeWindow(self._decode, known, prompt_ids)


class Detokenizer:
    """One request's ids to text."""

    __slots__ = ("_decoder",)

    def __init__(self, decoder: IncrementalDecoder) -> None:
        self._decoder = decoder

    def feed(self, item: TokenBatch, /) -> Iterable[TextDelta]:
        """The text of one batch; the token that stopped the request has none."""
        ids = item.ids
        if len(ids) == 1:
            text = "" if item.ends_with_stop else self._decoder.push(ids[0])
            return (TextDelta(text, ids, (len(text),), item.logprobs),)
        if not ids:
            return ()
        texts = self._decoder.push_all(ids[:-1] if item.ends_with_stop else ids)
        if item.ends_with_stop:
            texts.append("")
        ends = tuple(accumulate(map(len, texts)))
        return (TextDelta("".join(texts), ids, ends, item.logprobs),)

    def finish(self, outcome: Finished, /) -> Iterable[TextDelta]:
        """What is left of a character that never became whole: U+FFFD, once.

        Not when the request failed: the rest of the character may have been on its way.
        """
        tail = "" if outcome.error is not None else self._decoder.flush()
        return (TextDelta(tail),) if tail else ()
