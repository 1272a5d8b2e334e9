"""Calls of one node's ``/pd/*``: a path and a JSON body in, the node's answer out.

Signed where the cluster has a key, and sent once more where another node than the one that was
meant answers at the address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ..http.client.origin import Origin
from .refusals import retry_after
from .signing import Signing

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ..http.client import Begun, HTTPClient, Response
    from .address import NodeAddress
    from .signing import Sign

__all__ = ("ANSWER_BYTES", "Posted", "SignedPosts")

ANSWER_BYTES: Final = 1024 * 1024


class Posted(NamedTuple):
    """A short call's whole answer."""

    status: int
    body: bytes
    after: float | None
    """Its ``Retry-After``, in seconds, if it is a refusal."""


class SignedPosts:
    """Posts to one node.

    :param label: what clients read in place of its address.
    :param sign: None where the cluster has no key.
    :param answer_timeout: seconds for the short calls.
    """

    def __init__(
        self,
        client: HTTPClient,
        address: NodeAddress,
        *,
        label: str,
        sign: Sign | None,
        answer_timeout: float,
    ) -> None:
        self.origin = Origin.parse(address.origin, label=label)
        self.answer_timeout = answer_timeout
        self._client = client
        self._signing = Signing(sign)

    def begin(self, path: str, body: bytes) -> Begun | None:
        """Ask, and leave the answer to ``post``; None: not now. Sync."""
        headers = self._signing.headers("POST", path, body)
        return self._client.begin(self.origin, "POST", path, headers, body)

    async def post(
        self, path: str, body: bytes, *, wait: float = 0, begun: Begun | None = None
    ) -> Posted:
        """A short call.

        :param wait: seconds that the node may take beyond the usual.
        :param begun: the same call, by ``begin``.
        :raises ~tilert_stream.http.client.UpstreamError: the node did not answer.
        """
        response = await self.open(path, body, self.answer_timeout + wait, begun)
        try:
            answer = await response.read(ANSWER_BYTES, within=self.answer_timeout)
        finally:
            response.close()
        after = None if response.status == 200 else retry_after(response.header)
        return Posted(response.status, answer, after)

    def open(
        self, path: str, body: bytes, head_timeout: float, begun: Begun | None = None
    ) -> Awaitable[Response]:
        """The head of the answer to a call; close what is returned.

        :raises ~tilert_stream.http.client.UpstreamError: the node did not answer.
        """
        if self._signing.off:
            return self._send(path, body, head_timeout, begun)
        return self._open_signed(path, body, head_timeout, begun)

    async def _open_signed(
        self, path: str, body: bytes, head_timeout: float, begun: Begun | None
    ) -> Response:
        node = self._signing.node
        response = await self._send(path, body, head_timeout, begun)
        if self._signing.learn(response, node):
            response.close()
            return await self._send(path, body, head_timeout)
        return response

    def _send(
        self, path: str, body: bytes, head_timeout: float, begun: Begun | None = None
    ) -> Awaitable[Response]:
        headers = self._signing.headers("POST", path, body)
        return self._client.open(
            self.origin, "POST", path, headers, body, head_timeout=head_timeout, begun=begun
        )
