"""A conversation in, the model's prompt text out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ("ChatTemplate",)

logger = logging.getLogger(__name__)


class ChatTemplate:
    """A model's Jinja chat template, compiled once. Thread-safe; no I/O.

    :param source: the template's text, as in ``tokenizer_config.json``, ``chat_template.jinja``
        or GGUF's ``tokenizer.chat_template``.
    :param special_tokens: variables such as ``bos_token``, by the name the template uses.
    :raises ~tilert_stream.errors.ConfigError: jinja2 is not installed, or the template is broken.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        # Imported here: a base model is served without jinja2, and its import takes a while.
        try:
            from jinja2 import TemplateError

            from .template_env import RaisedByTemplate, compile_template
        except ImportError as error:
            raise ConfigError(
                "a chat template needs jinja2, which is not installed:"
                " pip install 'tilert-stream[engine]'"
            ) from error
        try:
            template = compile_template(source)
        except TemplateError as error:
            raise ConfigError(
                f"the model's chat template is not valid Jinja: {error.message}"
            ) from error
        self.source = source
        self._template = template
        self._raised = RaisedByTemplate
        # Once, in place of jinja2's own merging for each rendering.
        self._variables: dict[str, object] = {
            **template.globals,
            "tools": None,
            "documents": None,
            **(special_tokens or {}),
        }

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        /,
        *,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> str:
        """The prompt for ``messages``, each with ``role`` and a ``content`` that is a string.

        :param add_generation_prompt: end with the header of the assistant's turn.
        :param kwargs: further variables, such as ``enable_thinking``.
        :raises ~tilert_stream.errors.InvalidRequest: the template refuses or cannot render them.
        """
        variables = {
            **self._variables,
            **kwargs,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            context = self._template.new_context(variables, shared=True)
            return "".join(self._template.root_render_func(context))
        except self._raised as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error.message}",
                param="messages",
            ) from error
        except Exception as error:
            # A template is foreign code on the client's data: what it raises is about the request,
            # and its text may quote the template, so that only the kind of error is told.
            logger.debug("the chat template failed", exc_info=error)
            raise InvalidRequest(
                f"the model's chat template cannot render these messages"
                f" ({type(error).__name__}): check their roles, their order and"
                " chat_template_kwargs",
                param="messages",
            ) from error
