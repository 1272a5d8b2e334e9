"""A token id in, what it spells out: for clients that look at single tokens."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ..model.byte_table import make_byte_table
from ..model.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from ..model.byte_table import ByteTable
    from ..model.card import TextCodec

__all__ = ("TokenNames",)


class TokenNames:
    """One model's; its table is made when the first name is asked for.

    :param tokenizer: one that is no ``TextTokenizer`` has its tokens decoded one by one.
    """

    def __init__(self, tokenizer: TextCodec) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _table(self) -> ByteTable | None:
        tokenizer = self._tokenizer
        return make_byte_table(tokenizer) if isinstance(tokenizer, TextTokenizer) else None

    def spelled(self, token: int) -> bytes:
        """The token's bytes, which need not be whole characters; special tokens have theirs."""
        if self._table is None:
            return self._tokenizer.decode((token,), skip_special_tokens=False).encode()
        spelling = self._table.all_tokens.get(token, "")
        return spelling.encode() if isinstance(spelling, str) else spelling
