"""Grammars: JSON text in, the tokens that may come next out.

``llguidance`` compiles a grammar and follows an answer through it, a token at a time. A compiled
grammar serves any number of answers: each gets a copy.
"""

from __future__ import annotations

import importlib.util
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import torch

from tilert_stream.errors import EngineFault

from .schema_fault import fault_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from llguidance import LLMatcher, LLTokenizer
    from tokenizers import Tokenizer

__all__ = ("GrammarFault", "GrammarMatcher", "Grammars", "grammars_of")

KEPT: Final = 64
"""Compiled grammars: those asked for last."""


class GrammarFault(EngineFault):
    """An answer cannot go on in its grammar: the client's fault, found out by the engine.

    Sending the same request again gives the same, so it is no 5xx, where that can be told.
    """

    status = 400
    type = "invalid_request_error"
    code = "grammar_fault"


class GrammarMatcher:
    """One answer on its way through its grammar."""

    def __init__(self, matcher: LLMatcher, vocab: int) -> None:
        self._matcher = matcher
        self._bits = torch.zeros((vocab + 31) // 32 * 4, dtype=torch.uint8)
        self._places = torch.arange(8, dtype=torch.uint8)

    def forbidden(self, logits: torch.Tensor) -> torch.Tensor:
        """Which tokens must not come next: bool ``[vocab]``, where ``logits`` are.

        :raises GrammarFault: the grammar is too complex to go on.
        """
        bits = self._bits
        self._matcher.unsafe_compute_mask_ptr(bits.data_ptr(), bits.numel())
        self._check()
        allowed = (bits.unsqueeze(1) >> self._places) & 1
        return (allowed.view(-1)[: logits.shape[0]] == 0).to(logits.device)

    def consume(self, token: int) -> None:
        """``token`` is the answer's next; once for each, the first included.

        :raises GrammarFault: the grammar does not allow it.
        """
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFault(f"the grammar cannot be followed: {_words(self._matcher)}")


class Grammars:
    """The grammars of one model. Thread-safe.

    :param vocab: rows of the model's head, which may be more than the tokenizer has ids.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos_ids: Collection[int]) -> None:
        self._described = tokenizer.to_str()
        self._vocab = vocab
        self._eos_ids = sorted(eos_ids)
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def check(self, grammar: str, param: str) -> None:
        """Compile ``grammar``, so that its first answer need not wait for that.

        Takes a millisecond, or a second for a very complex one: call it in a thread.

        :param param: the request's field that it came from.
        :raises ~tilert_stream.errors.InvalidRequest: it cannot be followed; names the part of the
            schema that is at fault.
        """
        matcher = self._matcher(grammar)
        if matcher.is_error():
            raise fault_of(grammar, param, matcher.get_error())

    def matcher(self, grammar: str) -> GrammarMatcher:
        """An answer's way through ``grammar``.

        :raises GrammarFault: it cannot be followed.
        """
        matcher = self._matcher(grammar)
        if matcher.is_error():
            raise GrammarFault(f"the grammar cannot be followed: {_words(matcher)}")
        return GrammarMatcher(matcher.deep_copy(), self._vocab)

    def _matcher(self, grammar: str) -> LLMatcher:
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is not None:
                self._compiled.move_to_end(grammar)
                return matcher
        # Unlocked: an engine's thread must not wait for what somebody else's grammar takes.
        matcher = self.compile(grammar)
        # Some that compile allow nothing at all (a schema that only refers to itself): this says so
        # before a slot is taken.
        begun = matcher.deep_copy()
        begun.compute_bitmask()
        if begun.is_error():
            matcher = begun
        with self._lock:
            self._compiled[grammar] = matcher
            if len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return matcher

    def compile(self, grammar: str) -> LLMatcher:
        """Compile ``grammar``, whether it is kept or not; what is wrong with it, it says itself."""
        from llguidance import LLMatcher

        return LLMatcher(self._ll_tokenizer(), grammar, log_level=0)

    def _ll_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        with self._making:
            if self._tokenizer is None:
                self._tokenizer = LLTokenizer(
                    self._described, n_vocab=self._vocab, eos_token=self._eos_ids
                )
            return self._tokenizer


def _words(matcher: LLMatcher) -> str:
    """What the library says, without its whole state, which follows."""
    return matcher.get_error().partition("\n<state>")[0]


def grammars_of(tokenizer: Tokenizer, vocab: int, eos_ids: Collection[int]) -> Grammars | None:
    """Grammars for a model; None where ``llguidance`` is not installed, or nothing ends an answer.

    Install it with ``pip install 'tilert-stream[grammar]'``.
    """
    installed = importlib.util.find_spec("llguidance") is not None
    return Grammars(tokenizer, vocab, eos_ids) if installed and eos_ids else None
