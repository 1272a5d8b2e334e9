"""A hand-over that will not come, told to its decode node over HTTP, so that its request ends now.

For nodes that are not told on their control port: it does not answer, or its dialect, TileRT's, has
no word for it. TileRT's own server knows none over HTTP either; there the request ends at its time
limit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tilert_stream.cluster.address import NodeAddress
from tilert_stream.cluster.decline_call import DeclineCall
from tilert_stream.http.client import UpstreamError
from tilert_transports.control.tilert_pd import normalise_rid

if TYPE_CHECKING:
    from tilert_stream.http.client import HTTPClient
    from tilert_transports.control.auth import ClusterKey

    from .destination import Destination

__all__ = ("HttpWord",)

logger = logging.getLogger(__name__)


class HttpWord:
    """Calls decode nodes.

    :param key: the cluster's.
    """

    def __init__(self, http: HTTPClient, key: ClusterKey | None) -> None:
        self._http = http
        self._sign = None if key is None else key.sign

    async def decline(self, request_id: str, destination: Destination, reason: str) -> None:
        """Tell a node that nothing will come. One that cannot be told is logged.

        :param request_id: vLLM's own id.
        """
        if destination.http_port is None:
            logger.info(
                "request %s: its decode node cannot be told that %s; the router gave no"
                " tilert_http_port",
                request_id,
                reason,
            )
            return
        address = NodeAddress(destination.host, destination.port, destination.http_port)
        call = DeclineCall(self._http, address, sign=self._sign)
        grant = destination.grant
        try:
            if grant is None:
                await call.decline_request(normalise_rid(request_id), reason)
            else:
                await call.decline_grant(grant.request, grant.incarnation, grant.generation, reason)
        except UpstreamError as error:
            logger.info("request %s: its decode node cannot be told: %s", request_id, error)
