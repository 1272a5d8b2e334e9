"""How a check says no: with a sentence, and the exchange that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from .exchange import Exchange

__all__ = ("Failed", "Skipped", "evidence", "printable", "require", "skip")

AROUND: Final = 160
"""Bytes of an answer that are shown on each side of a fault."""
REQUEST_MAX: Final = 300


class Failed(Exception):
    """The server does not do what the check asks for."""

    def __init__(self, reason: str, exchange: Exchange | None = None, at: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exchange = exchange
        self.at = at


class Skipped(Exception):
    """The check can say nothing about this server."""


def require(
    condition: object, reason: str, exchange: Exchange | None = None, at: int | bytes = 0
) -> None:
    """Fail the check unless ``condition`` is true.

    :param at: where in the body the fault is: an offset, or the bytes that stand there.
    """
    if condition:
        return
    if isinstance(at, bytes):
        at = max(0, exchange.body.find(at)) if exchange is not None else 0
    raise Failed(reason, exchange, at)


def skip(reason: str) -> NoReturn:
    """End the check without a verdict."""
    raise Skipped(reason)


def evidence(exchange: Exchange, at: int = 0) -> str:
    """What was sent and what came, as printable text; the key is not in it."""
    request = exchange.request
    sent = f"> {request.method} {request.path} {_shown(request.body[:REQUEST_MAX])}"
    if not exchange.status:
        return f"{sent}\n< no answer: {exchange.ending} {exchange.fault}".rstrip()
    start = max(0, at - AROUND)
    shown = exchange.body[start : at + AROUND]
    cut = len(exchange.body) - len(shown)
    return "\n".join(
        (
            sent,
            f"< {exchange.status} {printable(exchange.header('content-type') or '')}"
            f" ({exchange.ending}) {exchange.fault}".rstrip(),
            f"< {'…' if start else ''}{_shown(bytes(shown))}{'…' if cut > start else ''}",
        )
    )


def printable(text: str) -> str:
    """``text`` without what a terminal or an XML reader would act on."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _shown(data: bytes) -> str:
    return repr(data)[2:-1]
