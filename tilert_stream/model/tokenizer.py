"""A model's tokenizer: text becomes token ids here.

In: a prompt as text. Out: its ids, and what the detokenizer needs to go the other way: every
token's spelling, which ids are special, and the steps of the decoder.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, TypeAlias, cast

import orjson
from tokenizers import Tokenizer

from ..errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from os import PathLike

__all__ = ("DecoderStep", "TextTokenizer")

DecoderStep: TypeAlias = "Mapping[str, object]"
"""One decoder of a ``tokenizer.json``, as it stands there: ``{"type": "ByteLevel", …}``."""


class TextTokenizer:
    """Wraps a ``tokenizers.Tokenizer``, once a model; requests share it.

    :param tokenizer: belongs to this object from here on. Truncation and padding that its file
        may ask for are switched off: they would change prompts silently.
    """

    __slots__ = ("_tokenizer", "special_ids", "tokens", "vocab_size")

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        added = tokenizer.get_added_tokens_decoder()
        # An added token hides the model's token of the same id, as it does in ``decode``.
        contents = {token_id: token.content for token_id, token in added.items()}
        self.tokens: Mapping[int, str] = {i: token for token, i in vocabulary.items()} | contents
        """id → token, spelled as in the vocabulary. Ids may have holes."""
        special = {token_id for token_id, token in added.items() if token.special}
        # ``tokenizers`` knows special tokens by their text, whatever id it stands at.
        twins = {vocabulary[contents[i]] for i in special if contents[i] in vocabulary}
        self.special_ids: frozenset[int] = frozenset(special | twins)
        """Ids that give no text where special tokens are skipped."""
        self.vocab_size: int = max(self.tokens, default=-1) + 1
        """Every id is below this number. A model's head may be padded to more rows."""

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> TextTokenizer:
        """Read a ``tokenizer.json`` (the format of the ``tokenizers`` library).

        :raises FileNotFoundError: there is no such file.
        :raises ValueError: it is no ``tokenizer.json``.
        """
        with open(path, "rb") as file:
            content = file.read()
        try:
            tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:
            raise ValueError(f"{path} is no tokenizer.json: {error}") from error
        return cls(tokenizer)

    def showing(self, texts: Collection[str]) -> TextTokenizer:
        """The same tokenizer, to which the tokens ``texts`` are not special: they have text."""
        hidden = frozenset(i for i in self.special_ids if self.tokens[i] not in texts)
        if hidden == self.special_ids:
            return self
        shown = copy(self)
        shown.special_ids = hidden
        return shown

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of ``text``; with ``add_special_tokens`` the model's BOS and the like too.

        :raises ~tilert_stream.errors.InvalidRequest: ``text`` has a lone surrogate: it is not
            Unicode, and no tokenizer knows it.
        """
        try:
            # The batch call releases the GIL, and does not compute the offsets nobody asks for.
            encoded = self._tokenizer.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
            return tuple(encoded[0].ids)
        except TypeError as error:
            for place, character in enumerate(text):
                if "\ud800" <= character <= "\udfff":
                    raise InvalidRequest(
                        f"the text has a lone surrogate, U+{ord(character):04X}, as character"
                        f" {place}; it must be Unicode: send surrogates in pairs, or U+FFFD"
                    ) from error
            raise

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool) -> str:
        """The whole text of ``ids``, as the ``tokenizers`` library has it.

        Ids outside the vocabulary give no text.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        shown = [i for i in ids if i in self.tokens and i not in skipped]
        # Some decoders panic where there is nothing to decode.
        return self._tokenizer.decode(shown, skip_special_tokens=False) if shown else ""

    def decoder_steps(self) -> tuple[DecoderStep, ...]:
        """The decoders of ``decode``, in order; none where it joins tokens by spaces."""
        decoder = self._tokenizer.decoder
        if decoder is None:
            return ()
        # The pickled state is the decoder's part of tokenizer.json: ``to_str`` would write the
        # whole vocabulary (0.1 s for 129,280 entries) to say the same.
        return tuple(_flatten(cast("dict[str, object]", orjson.loads(decoder.__getstate__()))))


def _flatten(step: DecoderStep) -> Iterable[DecoderStep]:
    if step["type"] != "Sequence":
        return [step]
    inner = cast("list[dict[str, object]]", step["decoders"])
    return [leaf for child in inner for leaf in _flatten(child)]
