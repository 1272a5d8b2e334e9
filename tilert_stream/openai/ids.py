"""Token ids, as a client gives them: whether a list holds nothing else, and only the model's.

A prompt of ids may be long, and its prefill waits until it has been looked through. So neither
question is put to each id in Python, nor by comparing one object after the other: both lists and
texts have calls in C that see all of them. What such a call does not accept is looked at again
slowly, for an error that names the id.
"""

from __future__ import annotations

import re
import sys
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, cast

import orjson
from pydantic import Field, WrapValidator

from ..errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ("Ids", "check_ids")

_CODE_POINTS: Final = f"utf-32-{sys.byteorder[0]}e"


def _looked_through(value: object, judge: Callable[[object], list[int]]) -> list[int]:
    return cast("list[int]", value) if _only_ids(value) else judge(value)


def _only_ids(value: object) -> bool:
    """Whether ``value`` is a list of integers from 0 on; False: look closely."""
    if type(value) is not list:
        return False
    try:
        text = orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits
        return False
    # A sign, a point, an exponent, letters, quotes and inner brackets all stay.
    return text.translate(None, b"0123456789,") == b"[]"


Ids = Annotated[list[int], Field(fail_fast=True), WrapValidator(_looked_through)]
"""A list of integers, strictly; a long one is read in a third of the time that pydantic takes."""


def check_ids(ids: Sequence[int], param: str, vocab_size: int) -> None:
    """Refuse token ids that the model does not have.

    :raises ~tilert_stream.errors.InvalidRequest: naming the first.
    """
    if _all_below(ids, vocab_size):
        return
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"{param}[{index}] is {token}; a token id must be at least 0 and below the"
                f" vocabulary's size, {vocab_size}",
                param=f"{param}[{index}]",
            )


def _all_below(ids: Sequence[int], size: int) -> bool:
    """Whether all of ``ids`` are at least 0 and below ``size``; False: look closely."""
    if not ids:
        return True
    if size > sys.maxunicode:
        return min(ids) >= 0 and max(ids) < size
    try:
        # As characters, since texts can be searched for what is too high: three times as fast as
        # min and max, which compare integers as objects.
        characters = str(array("I", ids), _CODE_POINTS, "surrogatepass")
    except (OverflowError, UnicodeDecodeError):  # below 0, or beyond all characters
        return False
    return not _beyond(size).search(characters)


@lru_cache(maxsize=8)
def _beyond(size: int) -> re.Pattern[str]:
    """What finds a character from ``size`` on; to look for it among ``re``'s own takes longer."""
    return re.compile(f"[{re.escape(chr(size))}-{chr(sys.maxunicode)}]")
