"""Everything that belongs to one request while it lives, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .events import PromptUsage

if TYPE_CHECKING:
    from collections.abc import Callable

    from .abc import Transform
    from .events import GenerateRequest, TokenBatch
    from .lease import Lease
    from .lifecycle import Lifecycle
    from .mailbox import Mailbox
    from .telemetry.record import RequestRecord
    from .trace import Trace

__all__ = ("RequestScope",)


@dataclass(slots=True)
class RequestScope:
    """What the stages of one request share. Made by ``Pipeline.open``, gone when it exits."""

    request: GenerateRequest
    lease: Lease
    """What the request holds; releasing it gives everything back."""
    mailbox: Mailbox[TokenBatch]
    """The only hop a token pays."""
    lifecycle: Lifecycle
    trace: Trace | None = None
    record: RequestRecord | None = None
    """What is noted for whoever looks on; None where nobody does."""
    encode: Callable[[RequestScope], Transform[Any, Any]] | None = None
    """Makes its last stage, where the service's caller has brought one."""
    begun: object | None = None
    """What the first step has begun before the request has a task (``abc.EarlyStep``)."""
    usage: PromptUsage = field(init=False)
    """The prompt's tokens: counted here, until prefill reports its own count."""

    def __post_init__(self) -> None:
        self.usage = PromptUsage(len(self.request.prompt_ids))
