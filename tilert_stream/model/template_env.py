"""The Jinja environment that model repositories write their chat templates for.

Follows ``apply_chat_template`` of Hugging Face transformers: a sandbox in which nothing can be
changed, ``trim_blocks`` and ``lstrip_blocks``, loop controls, ``tojson`` without HTML escapes,
``raise_exception``, ``strftime_now`` and the ``{% generation %}`` tag (which marks text for
training and renders as its content).
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from jinja2 import Template, nodes
    from jinja2.parser import Parser

__all__ = ("RaisedByTemplate", "compile_template")


class RaisedByTemplate(TemplateError):
    """The template called ``raise_exception``: its message is meant for the client."""


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_template(source: str) -> Template:
    """Compile ``source``.

    :raises jinja2.TemplateSyntaxError: it cannot be.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    return environment.from_string(
        source, globals={"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    )


def _raise_exception(message: str) -> NoReturn:
    raise RaisedByTemplate(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it either way
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - templates pass it either way
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
