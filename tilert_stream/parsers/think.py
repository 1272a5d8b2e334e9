"""Reasoning in ``<think>…</think>``, as DeepSeek R1, QwQ and their like write it; no calls."""

from __future__ import annotations

from typing import Final

from .format import FormatParser
from .sections import THINK_END, SectionReader

__all__ = ("THINKING", "ThinkReader")


class ThinkReader(SectionReader):
    """Reads one answer."""


THINKING: Final = FormatParser("think", ThinkReader, lambda template: THINK_END in template)
