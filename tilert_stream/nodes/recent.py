"""What is remembered for a while, in bounded memory: the newest entries, by key."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ("Recent",)

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping that forgets its oldest entry when it is full.

    :param most: entries.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, value: V) -> None:
        """Remember ``value``, as the newest."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def pop(self, key: K) -> V | None:
        """Take an entry out; None if it is not there, or was forgotten."""
        return self._entries.pop(key, None)
