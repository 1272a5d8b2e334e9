"""What a started server says: where it is, and a line to paste."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilert_stream.http.scope import Address
    from tilert_stream.model.card import ModelCard

__all__ = ("announce", "announce_node", "bracketed", "describe")


logger = logging.getLogger(__name__)


def announce(
    address: Address, card: ModelCard, *, secure: bool = False, keyed: bool = False
) -> None:
    """Print ``describe`` to stdout at once, also into a pipe."""
    _say(describe(address, card, secure=secure, keyed=keyed))


def announce_node(work: str, option: str) -> None:
    """Print what a node does, and the option by which routers find it; at once."""
    _say(f"{work}; for routers: {option}\n")


def describe(
    address: Address, card: ModelCard, *, secure: bool = False, keyed: bool = False
) -> str:
    """The URL, the model's name, and a ``curl`` line that streams an answer.

    The answer is greedy, so that it is the same at every try: a small model's samples may ramble
    until the context is full.

    :param secure: by TLS. Its certificate is for another name than this machine's own address, or
        signed by itself: the line does not check it.
    :param keyed: clients need a key; the line takes it from ``$API_KEY``.
    """
    scheme = "https" if secure else "http"
    host, port = address
    if port is None:
        where = f"Unix socket {host}"
        target = f"--unix-socket {shlex.quote(host)} {scheme}://localhost"
    else:
        target = f"{scheme}://{_reachable(host)}:{port}"
        where = f"{target}/v1"
    prompt: dict[str, object]
    if card.chat_template is not None:
        path = "chat/completions"
        prompt = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    else:
        path = "completions"
        prompt = {"prompt": "The capital of France is", "max_tokens": 64}
    body = json.dumps({**prompt, "temperature": 0, "stream": True}, separators=(",", ":"))
    options = "-N -k" if secure else "-N"
    headers = "-H 'content-type: application/json'"
    if keyed:
        headers += ' -H "authorization: Bearer $API_KEY"'
    return (
        f"Serving {card.names[0]} at {where}\n\n"
        f"  curl {options} {target}/v1/{path} {headers} -d '{body}'\n\n"
    )


def _reachable(host: str) -> str:
    """An address to connect to, for one to listen on."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return "localhost"
    return bracketed(host)


def bracketed(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _say(text: str) -> None:
    # A server whose output nobody takes (closed, or a full disk) serves all the same.
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - typeshed knows it open
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        logger.warning("standard output cannot be written to: %s", error)
