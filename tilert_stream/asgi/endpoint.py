"""One path of an app: the method's handler, and every error as an OpenAI object.

And the answers that every app of ours gives alike.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ..errors import Cancelled, MethodNotAllowed, NotFound, NotReady, TilertStreamError
from ..openai.build import check_model
from ..openai.encoding import dumps
from ..openai.objects import model_list, model_objects
from .request_id import answer_id, id_header
from .response import ANSWER_BEGUN, ErrorResponse, JSONBody

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from starlette.types import Receive, Scope, Send

    from ..model.card import ModelCard
    from ..service import Service
    from .auth import KeyRing
    from .response import Headers

    Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ("Endpoint", "json_answer", "model_answer", "models_answer", "not_found", "ready_answer")

ECHO_MAX: Final = 200
"""Characters of a path or a method that an error repeats."""

logger = logging.getLogger(__name__)


class Endpoint:
    """One path: picks the method's handler, and answers every error as an OpenAI object.

    A handler raises one of ours only while it has sent nothing. One that is not ours is logged, and
    the client learns no more of it than that it was a 500.
    """

    def __init__(self, **handlers: Handler) -> None:
        if "GET" in handlers:
            handlers.setdefault("HEAD", handlers["GET"])
        self._handlers: Mapping[str, Handler] = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            await self._handler(scope["method"])(scope, receive, send)
        except Cancelled:
            logger.info("%s %s: the client left", scope["method"], scope["path"])
        except TilertStreamError as error:
            headers = (*self._allow(error), *id_header(answer_id(scope)))
            await ErrorResponse(error, headers)(scope, receive, send)
        except Exception:
            if ANSWER_BEGUN in scope:
                raise  # all that is left is to cut, and the server does that
            # Every server has a page of its own for this, which no client can read.
            request_id = answer_id(scope)
            logger.exception("%s %s failed: request %s", scope["method"], scope["path"], request_id)
            unknown = TilertStreamError("internal error; the server's log has it by x-request-id")
            await ErrorResponse(unknown, id_header(request_id))(scope, receive, send)

    def _handler(self, method: str) -> Handler:
        handler = self._handlers.get(method)
        if handler is None:
            raise MethodNotAllowed(f"{_cut(method)} is not allowed here; use {self._methods()}")
        return handler

    def _methods(self) -> str:
        return ", ".join(sorted(self._handlers))

    def _allow(self, error: TilertStreamError) -> Headers:
        allowed = isinstance(error, MethodNotAllowed)
        return ((b"allow", self._methods().encode()),) if allowed else ()


def json_answer(content: object) -> Handler:
    """The same JSON for everybody."""
    return JSONBody(dumps(content))


def ready_answer(service: Service[Any]) -> Handler:
    """Whether ``service`` takes requests: 200, or 503."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if not service.ready:
            raise NotReady("starting, draining, or without a living engine", retry_after=1)
        await JSONBody(b'{"status":"ready"}')(scope, receive, send)

    return answer


def models_answer(
    card: ModelCard,
    keys: KeyRing,
    shared: Callable[[], Awaitable[Collection[str] | None]] | None = None,
) -> Handler:
    """``GET /v1/models``, for whoever has a key.

    :param shared: what the engines elsewhere can do, of all that ``card`` has; None: nobody knows.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        keys.check(scope["headers"])
        shown = await _able(card, shared)
        await JSONBody(dumps(model_list([shown])))(scope, receive, send)

    return answer


def model_answer(
    card: ModelCard,
    keys: KeyRing,
    shared: Callable[[], Awaitable[Collection[str] | None]] | None = None,
) -> Handler:
    """``GET /v1/models/{model}``; parameters as ``models_answer``."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        keys.check(scope["headers"])
        name = check_model(scope["path_params"]["model"], card)
        shown = await _able(card, shared)
        await JSONBody(dumps(model_objects(shown)[card.names.index(name)]))(scope, receive, send)

    return answer


async def _able(
    card: ModelCard, shared: Callable[[], Awaitable[Collection[str] | None]] | None
) -> ModelCard:
    told = None if shared is None else await shared()
    if told is None:
        return card
    able = frozenset(each for each in card.capabilities if each in told or each == "tools")
    return replace(card, capabilities=able)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer for a path that there is not."""
    if scope["type"] != "http":
        return
    error = NotFound(f"no such path: {_cut(scope['path'])}")
    await ErrorResponse(error, id_header(answer_id(scope)))(scope, receive, send)


def _cut(given: str) -> str:
    """What of a client's own words an error repeats: a scanner may send tens of kilobytes."""
    return given if len(given) <= ECHO_MAX else f"{given[:ECHO_MAX]}…"
