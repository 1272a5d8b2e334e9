"""The calls of a decode node: what a router says in, what the node answers out.

========================  ==========================================================
``POST /pd/reserve``      a slot and a landing region, before anything is prefilled
``POST /pd/renew``        the reservation's lease, while prefill takes its time
``POST /pd/decode``       the stream of tokens; its head comes when the KV cache has
``POST /pd/cancel``       gives the request up, in whatever phase it is
``GET /decode_status``    ``idle`` or ``busy``: how a stock TileRT node is picked
========================  ==========================================================

A stock TileRT node knows no reservation: whether it is free is asked, and that it was not any more
is learnt from its answer to ``/pd/decode``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, cast

import orjson

from ..errors import Busy, KVTimeout, UnsupportedParameter
from ..http.client.errors import UpstreamInvalid
from .errors import DecodeFailed, ReservationLost
from .further_sampling import further_sampling
from .grant import Grant, foretold_grant, grant_asked, read_grant
from .json_fields import as_object
from .refusals import mismatch_of, read_words, refusal_of, retry_after
from .signed_posts import ANSWER_BYTES, SignedPosts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..errors import TilertStreamError
    from ..events import GenerateRequest, Sampling
    from ..http.client import Begun, HTTPClient, Response
    from .address import NodeAddress
    from .signing import Sign

__all__ = ("DecodeCall",)

_GONE: Final = frozenset({"kv_grant_gone"})


class DecodeCall:
    """Calls one decode node.

    :param label: what clients read in place of its address.
    :param sign: signs calls; None where the cluster has no key.
    :param answer_timeout: seconds for the short calls.
    :param kv_timeout: seconds that the node waits for the KV cache.
    """

    def __init__(
        self,
        client: HTTPClient,
        address: NodeAddress,
        *,
        label: str = "the decode node",
        sign: Sign | None = None,
        answer_timeout: float = 5.0,
        kv_timeout: float = 120.0,
    ) -> None:
        self.client = client
        self.address = address
        self._posts = SignedPosts(
            client, address, label=label, sign=sign, answer_timeout=answer_timeout
        )
        self.origin = self._posts.origin
        self._kv_timeout = kv_timeout
        self._stock = False
        self._incarnation: str | None = None
        self._slots = 0

    def foretell(self, request: GenerateRequest, holding: int) -> Grant | None:
        """The grant as the node will give it; None: nobody knows. Sync.

        So prefill can be told of it while it is asked for.

        :param holding: requests of this router that are there already; with all its slots in use
            the node would only refuse.
        """
        if self._stock or self._incarnation is None or holding >= self._slots:
            return None
        return foretold_grant(request.id, self._incarnation)

    def begin_reserve(
        self,
        request: GenerateRequest,
        attempt: int,
        layout: Mapping[str, object] | None,
        foretold: Grant,
    ) -> Begun | None:
        """Ask for what was foretold, and leave the answer to ``reserve``; None: not now. Sync."""
        asked = grant_asked(request, attempt, layout, foretold)
        return self._posts.begin("/pd/reserve", orjson.dumps(asked))

    async def reserve(
        self,
        request: GenerateRequest,
        attempt: int,
        layout: Mapping[str, object] | None = None,
        *,
        wait: float = 0,
        foretold: Grant | None = None,
        begun: Begun | None = None,
    ) -> Grant:
        """Ask for a slot that ``request`` fits in.

        :param attempt: names this call to ``cancel``; no two of one request have the same.
        :param layout: of the KV caches that prefill makes, field by field, where it is known.
        :param wait: seconds that the node may take until a slot comes free; a stock node knows no
            waiting.
        :param foretold: what prefill may have been told already.
        :param begun: the same request, by ``begin_reserve``.
        :raises ~tilert_stream.errors.Busy: no slot is free.
        :raises ~tilert_stream.errors.ContextLengthExceeded: the request never fits.
        :raises ~tilert_stream.errors.UnsupportedParameter: the node's engine cannot do what it asks
            for.
        :raises LayoutMismatch: the node cannot take such KV caches.
        :raises ~tilert_stream.http.client.UpstreamError: it did not answer, or not with a grant.
        """
        if not self._stock:
            if begun is None:
                asked = grant_asked(request, attempt, layout, foretold)
                if wait:
                    asked["wait_s"] = wait
                sent = orjson.dumps(asked)
            else:
                sent = begun.body
            status, body, after = await self._posts.post(
                "/pd/reserve", sent, wait=wait, begun=begun
            )
            if status == 200:
                return self._grant(body, request.id)
            if status != 404 or read_words(body).code is not None:
                refusal = self._refusal(status, body, after)
                if isinstance(refusal, Busy):
                    self._slots = 0  # nothing is foretold until it grants again
                if isinstance(refusal, UnsupportedParameter) and refusal.param is not None:
                    refusal = self._lacks(refusal.param, request.sampling)
                raise refusal
            self._stock = True
        for name in request.sampling.needs():
            raise self._lacks(name, request.sampling)
        return await self._look(request.id)

    def _lacks(self, capability: str, sampling: Sampling) -> UnsupportedParameter:
        """The error for what the node's engine cannot do, by the name that the client used."""
        if capability == "grammar":
            field = sampling.grammar_param.partition(".")[0]
            what = "cannot hold an answer to a grammar"
        else:
            field, what = capability, "has none"
        return UnsupportedParameter(
            f"{field} is set, and the engine of {self.origin.label} {what}; leave it out",
            param=field,
        )

    def _grant(self, body: bytes, request: str) -> Grant:
        try:
            fields = as_object(orjson.loads(body), "the grant")
            grant = read_grant(fields, request)
            slots = fields.get("slots")
            self._incarnation, self._slots = grant.incarnation, slots if type(slots) is int else 0
            return grant  # noqa: TRY300 - what may raise is read above
        except ValueError as error:
            raise UpstreamInvalid(
                f"what {self.origin.label} granted cannot be read: {error}"
            ) from error

    async def capabilities(self) -> frozenset[str]:
        """What its engine can do; nothing, as far as a stock node says.

        :raises ~tilert_stream.errors.TilertStreamError: it did not answer, or not usefully.
        """
        listed = (await self._status()).get("capabilities")
        names = cast("list[object]", listed) if isinstance(listed, list) else []
        return frozenset(name for name in names if isinstance(name, str))

    async def _status(self) -> Mapping[str, object]:
        async with self.client.request(
            self.origin, "GET", "/decode_status", head_timeout=self._posts.answer_timeout
        ) as response:
            body = await response.read(ANSWER_BYTES, within=self._posts.answer_timeout)
        if response.status != 200:
            raise self._refusal(response.status, body, retry_after(response.header))
        try:
            return as_object(orjson.loads(body), "its status")
        except ValueError as error:
            raise UpstreamInvalid(
                f"the status of {self.origin.label} cannot be read: {error}"
            ) from error

    async def _look(self, request: str) -> Grant:
        """Whether a stock node is free now."""
        if (await self._status()).get("status") != "idle":
            raise Busy(f"{self.origin.label} is busy; try again later", retry_after=1)
        return Grant(request, None, 0, 0, math.inf)

    async def renew(self, grant: Grant) -> None:
        """Give the reservation its full time again.

        :raises ReservationLost: it is over.
        :raises ~tilert_stream.http.client.UpstreamError: the node did not answer.
        """
        asked = {"rid": grant.request, "generation": grant.generation}
        status, body, after = await self._posts.post("/pd/renew", orjson.dumps(asked))
        if status != 200:
            raise self._refusal(status, body, after)

    async def cancel(self, request: str, attempt: int) -> None:
        """Give up what ``attempt`` has reserved, or will have when it arrives.

        That the node does not know it any more is fine.

        :raises ~tilert_stream.http.client.UpstreamError: the node did not answer.
        """
        await self._posts.post("/pd/cancel", orjson.dumps({"rid": request, "attempt": attempt}))

    async def decode(self, request: GenerateRequest, grant: Grant, first_token: int) -> Response:
        """Begin, and wait until the KV cache has landed and is imported; close what is returned.

        :raises ~tilert_stream.errors.KVTimeout: the KV cache did not come.
        :raises ReservationLost: the slot is no longer held.
        :raises DecodeFailed: prefill or the engine gave the request up.
        :raises ~tilert_stream.errors.Busy: a stock node has taken another request meanwhile.
        :raises ~tilert_stream.http.client.UpstreamError: the node did not answer.
        """
        body = orjson.dumps(self._order(request, grant, first_token))
        response = await self._posts.open(
            "/pd/decode", body, self._kv_timeout + self._posts.answer_timeout
        )
        try:
            if response.status == 200:
                return response
            words = await response.read(ANSWER_BYTES, within=self._posts.answer_timeout)
        except BaseException:
            response.close()
            raise
        response.close()
        raise self._refusal(response.status, words, retry_after(response.header))

    def _order(self, request: GenerateRequest, grant: Grant, first_token: int) -> dict[str, object]:
        limits, sampling = request.limits, request.sampling
        order: dict[str, object] = {
            "rid": request.id,
            "first_token_id": first_token,
            "max_tokens": limits.max_tokens,
            "sampling": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "seed": sampling.seed,
                "ignore_eos": not limits.eos_ids,
                "min_tokens": limits.min_tokens,
                "stop_token_ids": sorted(limits.stop_ids),
                **further_sampling(sampling),
            },
            "timeout_s": self._kv_timeout,
            "stream": True,
        }
        if grant.promised:
            order["generation"] = grant.generation
        return order

    def _refusal(self, status: int, body: bytes, after: float | None) -> TilertStreamError:
        words = read_words(body)
        label = self.origin.label
        mismatch = mismatch_of(words, label)
        if mismatch is not None:
            return mismatch
        if words.code in _GONE:
            return ReservationLost(f"{label} no longer holds the request: {words.message}")
        if status == 504:
            return KVTimeout(f"{label} gave the request up: {words.message}", retry_after=after)
        if status >= 500 and status != 503 and words.message:
            return DecodeFailed(f"{label} gave the request up: {words.message}")
        return refusal_of(status, body, label=label, after=after)
