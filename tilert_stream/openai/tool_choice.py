"""``tool_choice`` in: which tools are offered, and the grammar that forces a call of one out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from ..errors import InvalidRequest, UnsupportedParameter
from .describe import describe
from .grammar import lark_grammar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..events import Tool
    from ..model.card import ModelCard

__all__ = ("Forced", "force_call")


class Forced(NamedTuple):
    """What the answer must be."""

    grammar: str
    named: bool
    """The client has said which function."""


def force_call(
    choice: str | Mapping[str, object] | None,
    tools: Sequence[Tool],
    card: ModelCard,
    *,
    several: bool,
) -> Forced | None:
    """The call that ``choice`` forces; None where the model is free.

    :param several: whether one call may follow another.
    :raises ~tilert_stream.errors.InvalidRequest: it is none of OpenAI's choices, or names no tool;
        or a tool's parameters nest too deep.
    :raises ~tilert_stream.errors.UnsupportedParameter: calls of this model cannot be forced.
    """
    if choice in (None, "none", "auto"):
        return None
    named = isinstance(choice, dict)
    if choice != "required" and not named:
        raise InvalidRequest(
            f'tool_choice is {describe(choice)}; it must be "none", "auto", "required", or'
            ' {"type": "function", "function": {"name": …}}',
            param="tool_choice",
        )
    if not tools:
        raise InvalidRequest(
            f"tool_choice is {describe(choice)} and there are no tools; send tools, or leave"
            " tool_choice out",
            param="tool_choice",
        )
    wanted = [_named(choice, tools)] if isinstance(choice, dict) else tools
    source = None
    if card.call_grammar is not None:
        try:
            source = card.call_grammar(wanted, several and not named)
        except RecursionError as error:
            raise InvalidRequest(
                "the parameters of a tool nest too deep for a call to be forced; send flatter ones,"
                ' or tool_choice "auto"',
                param="tools",
            ) from error
    if source is None:
        raise UnsupportedParameter(
            f"tool_choice is {describe(choice)}, which is not served (calls of this model's output"
            ' parser cannot be forced): leave it out or send "none" or "auto"',
            param="tool_choice",
        )
    return Forced(lark_grammar(source), named)


def _named(choice: Mapping[str, object], tools: Sequence[Tool]) -> Tool:
    function = choice.get("function")
    name = cast("dict[str, object]", function).get("name") if isinstance(function, dict) else None
    for tool in tools:
        if choice.get("type") == "function" and tool.name == name:
            return tool
    known = ", ".join(tool.name for tool in tools)
    raise InvalidRequest(
        f"tool_choice is {describe(choice)}; it must name one of the tools: {known}",
        param="tool_choice.function.name" if isinstance(name, str) else "tool_choice",
    )
