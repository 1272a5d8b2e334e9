"""Paths that are always spelled alike: looked up, and not searched for among all routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from starlette.routing import Route, Router
    from starlette.types import Receive, Scope, Send

__all__ = ("FixedPaths",)


class FixedPaths:
    """An ASGI app: hands a request to one of ``routes`` where that is plain, else to ``router``.

    Plain is an HTTP request for the very path of a route, in an app that is not mounted below
    another path. The route's endpoint is found in the scope as the router would leave it there.

    :param routes: with no parameter in their paths, for all methods; the first ones of ``router``.
    """

    def __init__(self, router: Router, routes: Iterable[Route]) -> None:
        self._router = router
        self._routes = {route.path: route for route in routes}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request, or an ASGI server's lifespan."""
        if scope["type"] != "http" or scope.get("root_path"):
            return self._router(scope, receive, send)
        route = self._routes.get(scope["path"])
        if route is None:
            return self._router(scope, receive, send)
        scope.setdefault("router", self._router)
        scope["route"] = route
        scope["endpoint"] = route.endpoint
        scope["path_params"] = dict(scope.get("path_params", ()))
        return route.app(scope, receive, send)
