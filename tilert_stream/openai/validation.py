"""A JSON object in, a typed request out, or OpenAI's error about the first field that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import InvalidRequest
from .describe import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic_core import ErrorDetails

__all__ = ("WireModel", "param_name", "validate")

ModelT = TypeVar("ModelT", bound=BaseModel)

NEEDED: Final = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_type": "an integer",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "an object",
    "string_too_long": "at most {max_length} characters long",
    "string_too_short": "a string of at least {min_length} character",
    "string_type": "a string",
    "too_long": "a list of at most {max_length}",
    "too_short": "a list of at least {min_length}",
}
"""What a value must be, by pydantic's error type; custom errors bring their own words."""


class WireModel(BaseModel):
    """A part of a request: strict, so that neither ``"5"`` nor ``true`` is an integer."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


def validate(model: type[ModelT], body: Mapping[str, object]) -> ModelT:
    """``body`` as ``model``.

    :raises ~tilert_stream.errors.InvalidRequest: ``param`` is the field as the client spelled it,
        e.g. ``messages[0].role``.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _invalid(first) from error


def param_name(location: Iterable[int | str]) -> str:
    """``("messages", 0, "role")`` → ``messages[0].role``.

    A part in angle brackets is the tag of a union's branch, which is no part of the body.
    """
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not part.startswith("<"):
            name += f".{part}" if name else part
    return name


def _invalid(error: ErrorDetails) -> InvalidRequest:
    param = param_name(error["loc"])
    kind = error["type"]
    if kind == "missing":
        return InvalidRequest(f"{param} is missing; it is required", param=param)
    template = NEEDED.get(kind)
    needed = template.format(**error.get("ctx", {})) if template else error["msg"]
    return InvalidRequest(
        f"{param} is {describe(error['input'])}; it must be {needed}", param=param
    )
