"""The scope of a request that runs nowhere, for tests of a single stage."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tilert_stream.events import GenerateRequest, Limits
from tilert_stream.lease import Lease, Ledger
from tilert_stream.lifecycle import Lifecycle
from tilert_stream.scope import RequestScope

if TYPE_CHECKING:
    from collections.abc import Generator


__all__ = ("make_request", "make_scope")


def make_request(prompt_ids: tuple[int, ...] = (1, 2, 3), **fields: Any) -> GenerateRequest:
    """A request with an id and room for 64 tokens; ``fields`` override."""
    defaults: dict[str, Any] = {"id": "feed", "limits": Limits(max_tokens=64)}
    return GenerateRequest(prompt_ids=prompt_ids, **(defaults | fields))


class _NoMailbox:
    """Stands where a running request has its mailbox; keeps what a stage puts there."""

    def __init__(self) -> None:
        self.items: list[object] = []

    def put(self, *items: object) -> bool:
        self.items += items
        return True

    @property
    def awaited(self) -> bool:
        return False


@contextmanager
def make_scope(request: GenerateRequest | None = None) -> Generator[RequestScope]:
    """A scope for ``request``, outside of any event loop; its lease is released on exit."""
    request = make_request() if request is None else request
    lease = Lease(request.id, Ledger())
    mailbox: Any = _NoMailbox()
    try:
        yield RequestScope(request, lease, mailbox, Lifecycle())
    finally:
        lease.release("test over")
