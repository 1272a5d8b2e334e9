"""What a router may promise: asked of its decode nodes when somebody wants to know."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from anyio import create_task_group

from tilert_stream.errors import TilertStreamError

if TYPE_CHECKING:
    from tilert_stream.cluster.decode_call import DecodeCall
    from tilert_stream.cluster.pool import Pool

__all__ = ("shared_capabilities",)

logger = logging.getLogger(__name__)


async def shared_capabilities(pool: Pool[DecodeCall]) -> frozenset[str] | None:
    """What every decode node that answers can do; None where none answers."""
    told: list[frozenset[str]] = []

    async def ask(node: DecodeCall) -> None:
        try:
            told.append(await node.capabilities())
        except TilertStreamError as error:
            logger.info("%s did not tell its capabilities: %s", node.origin.label, error)

    async with create_task_group() as tasks:
        for member in pool.members:
            tasks.start_soon(ask, member.node)
    if not told:
        return None
    shared, *others = told
    for each in others:
        shared &= each
    return shared
