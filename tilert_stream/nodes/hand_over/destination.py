"""``kv_transfer_params`` of a request → where its KV cache goes; None: the request is not ours.

The keys are TileRT's ``tilert_host`` and ``tilert_ctrl_port``. A router of this project adds the
decode node's grant: ``tilert_request``, ``tilert_incarnation`` and ``tilert_generation``; and
``tilert_http_port``, where the node is told what it cannot be told on its control port. Without a
grant the hand-over is TileRT's own (its dialect, and the request's id cut as TileRT cuts it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from tilert_stream.errors import InvalidRequest
from tilert_stream.slot_init import slot_init

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("DEFAULT_CTRL_PORT", "Destination", "Grant", "destination_of", "params_for")

DEFAULT_CTRL_PORT: Final = 5556

_HOST: Final = "tilert_host"
_PORT: Final = "tilert_ctrl_port"
_HTTP: Final = "tilert_http_port"
_REQUEST: Final = "tilert_request"
_INCARNATION: Final = "tilert_incarnation"
_GENERATION: Final = "tilert_generation"
_GRANT: Final = (_REQUEST, _INCARNATION, _GENERATION)


@slot_init
@dataclass(frozen=True, slots=True)
class Grant:
    """What the decode node gave to the router at the reservation."""

    request: str
    """The router's id of the request."""
    incarnation: str
    """The decode node's: a restarted node counts its generations anew."""
    generation: int


@slot_init
@dataclass(frozen=True, slots=True)
class Destination:
    """A decode node's control port, and the grant to claim there."""

    host: str
    port: int
    grant: Grant | None = None
    """None: a router of TileRT's sent the request; there is nothing to claim."""
    http_port: int | None = None
    """Where the same node answers HTTP; None: not told."""


def params_for(destination: Destination) -> dict[str, object]:
    """What a router puts into ``kv_transfer_params``."""
    params: dict[str, object] = {_HOST: destination.host, _PORT: destination.port}
    if destination.grant is not None:
        params[_REQUEST] = destination.grant.request
        params[_INCARNATION] = destination.grant.incarnation
        params[_GENERATION] = destination.grant.generation
    if destination.http_port is not None:
        params[_HTTP] = destination.http_port
    return params


def destination_of(
    params: Mapping[str, object] | None,
    *,
    default_host: str | None = None,
    default_port: int = DEFAULT_CTRL_PORT,
) -> Destination | None:
    """Where a request's KV cache goes; None if it is no request of ours.

    :param default_host: for requests that name a port or a grant, but no host.
    :raises ~tilert_stream.errors.InvalidRequest: one of our keys has a value that cannot be.
    """
    if not params or not any(key in params for key in (_HOST, _PORT, *_GRANT)):
        return None
    host = params.get(_HOST, default_host)
    if not isinstance(host, str) or not host:
        _refuse(_HOST, host, "a host name or an address")
    port = _integer(params, _PORT, default_port, most=65535)
    http_port = _integer(params, _HTTP, None, most=65535) if _HTTP in params else None
    return Destination(host, port, _grant(params), http_port)


def _grant(params: Mapping[str, object]) -> Grant | None:
    if not any(key in params for key in _GRANT):
        return None
    request, incarnation = params.get(_REQUEST), params.get(_INCARNATION)
    if not isinstance(request, str) or not request or not request.isprintable():
        _refuse(_REQUEST, request, "the router's id of the request")
    if not isinstance(incarnation, str) or not incarnation:
        _refuse(_INCARNATION, incarnation, "the decode node's incarnation")
    return Grant(request, incarnation, _integer(params, _GENERATION, None, most=2**53 - 1))


def _integer(params: Mapping[str, object], key: str, default: int | None, *, most: int) -> int:
    value = params.get(key, default)
    # bool is a subclass of int, and true is no number.
    if type(value) is not int or not 1 <= value <= most:
        _refuse(key, value, f"an integer from 1 to {most}")
    return value


def _refuse(key: str, value: object, needed: str) -> NoReturn:
    raise InvalidRequest(
        f"kv_transfer_params.{key} is {value!r:.80}; {needed} is needed",
        param=f"kv_transfer_params.{key}",
    )
