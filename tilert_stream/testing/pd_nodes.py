"""A prefill and a decode node without engines: what a router's remote legs are tested against.

Both are ASGI apps that speak the nodes' real wire, count what they hold, and can be stopped at any
place by a hook, or be made to answer whatever a test wants.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import orjson
from anyio import create_task_group

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

__all__ = ("Answer", "ScriptedDecodeNode", "ScriptedPrefillNode")

Fields: TypeAlias = "dict[str, Any]"

REFUSED_BY_PREFILL: Final = ("stream_options", "max_completion_tokens", "stop", "n", "echo")
"""What vLLM refuses where nothing is streamed, or what would make it compute more than asked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, in place of the node's own."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Hook: TypeAlias = "Callable[[Fields], Awaitable[Answer | None]]"
"""Called with a request's JSON body; what it returns is answered in the node's place."""


async def _pass_on(_fields: Fields) -> Answer | None:
    return None


async def _body(receive: Receive) -> Fields:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return cast("Fields", orjson.loads(body or b"{}"))


async def _send(send: Send, answer: Answer) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _flat(status: int, code: str, message: str, **headers: str) -> Answer:
    return Answer(status, orjson.dumps({"error": message, "code": code}), headers)


class ScriptedPrefillNode:
    """``POST /v1/completions``, as vLLM with a connector answers it; and its list of models.

    :param first_token: of a prompt.
    :param names_ids: whether it answers ``token_ids``, or only ``token_id:N`` in logprobs.
    :param before_answer: runs once the request is counted.
    """

    def __init__(
        self,
        *,
        first_token: Callable[[list[int]], int] = lambda prompt: prompt[0],
        names_ids: bool = True,
        cached_tokens: int | None = None,
        before_answer: Hook = _pass_on,
    ) -> None:
        self.before_answer = before_answer
        self.calls: list[Fields] = []
        self.headers: list[dict[str, str]] = []
        self.active = 0
        """Requests being computed now."""
        self.aborted = 0
        """Whose caller left before the answer."""
        self._first_token = first_token
        self._names_ids = names_ids
        self._cached_tokens = cached_tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        fields = await _body(receive)
        if scope["path"] == "/v1/models":
            # vLLM's has no word of a KV layout.
            await _send(
                send, Answer(200, b'{"object":"list","data":[{"id":"m","object":"model"}]}')
            )
            return
        self.calls.append(fields)
        self.headers.append({key.decode(): value.decode() for key, value in scope["headers"]})
        self.active += 1
        try:
            answer = await _unless_left(receive, self._answer(scope["path"], fields))
        finally:
            self.active -= 1
        if answer is None:
            self.aborted += 1
        else:
            await _send(send, answer)

    async def _answer(self, path: str, fields: Fields) -> Answer:
        replaced = await self.before_answer(fields)
        if replaced is not None:
            return replaced
        if path != "/v1/completions":
            return Answer(404, b'{"detail":"Not Found"}')
        for name in REFUSED_BY_PREFILL:
            if name in fields:
                error = {"message": f"{name} is not for prefill", "param": name, "code": 400}
                return Answer(400, orjson.dumps({"error": error}))
        return Answer(200, orjson.dumps(self._completion(fields)))

    def _completion(self, fields: Fields) -> Fields:
        prompt: list[int] = fields["prompt"]
        token = self._first_token(prompt)
        choice: Fields = {
            "index": 0,
            "text": "",
            "finish_reason": "length",
            "logprobs": {"tokens": [f"token_id:{token}"], "token_logprobs": [-0.5]},
        }
        if self._names_ids:
            choice["token_ids"] = [token]
        usage: Fields = {"prompt_tokens": len(prompt), "completion_tokens": 1}
        if self._cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached_tokens}
        return {"id": f"cmpl-{fields['request_id']}", "choices": [choice], "usage": usage}


class ScriptedDecodeNode:
    """A decode node: reservations, and streams of the ids that ``token`` gives.

    :param token: the id at an index of a request's answer; the first token has index 0, and is
        not asked for.
    :param stock: without ``/pd/reserve`` and ``/pd/renew``, as TileRT's own.
    :param ttl: seconds of a reservation; nothing expires here.
    :param hooks: by path: run before the node's own work, and may answer in its place.
    :param between: awaited before each token after the first, with its index.
    :param before_end: awaited between the last line and the end of the body.
    """

    def __init__(
        self,
        *,
        slots: int = 1,
        token: Callable[[int], int] = lambda index: 100 + index,
        stock: bool = False,
        ttl: float = 30.0,
        max_seq_len: int = 4096,
        hooks: Mapping[str, Hook] | None = None,
        between: Callable[[int], Awaitable[None]] | None = None,
        before_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.hooks: dict[str, Hook] = dict(hooks or {})
        self.calls: list[tuple[str, Fields]] = []
        self.held: dict[str, int] = {}
        """Generations by request: reserved or decoding now."""
        self.decoding = 0
        self.cancelled: list[str] = []
        """Requests that somebody asked to cancel."""
        self.left = 0
        """Streams whose reader left before their end."""
        self._slots = slots
        self._token = token
        self._stock = stock
        self._ttl = ttl
        self._max_seq_len = max_seq_len
        self._between = between
        self._before_end = before_end
        self._generation = 0
        self._given_up = set[tuple[str, object]]()
        """Attempts whose cancel may have come before they could be granted."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path: str = scope["path"]
        fields = await _body(receive)
        self.calls.append((path, fields))
        if path == "/pd/decode":
            await self._decode(fields, receive, send)
            return

        async def answer() -> None:
            replaced = await self.hooks.get(path, _pass_on)(fields)
            await _send(send, self._answer(path, fields) if replaced is None else replaced)

        await _unless_left(receive, answer())

    def paths(self) -> list[str]:
        """What has been called, in order."""
        return [path for path, _ in self.calls]

    def _answer(self, path: str, fields: Fields) -> Answer:
        if path == "/decode_status":
            busy = len(self.held) >= self._slots
            return Answer(200, b'{"status":"busy"}' if busy else b'{"status":"idle"}')
        if path == "/pd/cancel":
            self.cancelled.append(fields["rid"])
            self._given_up.add((fields["rid"], fields.get("attempt")))
            known = self.held.pop(fields["rid"], None) is not None
            return Answer(200, b"{}") if known else _flat(404, "not_found", "no such request")
        if path == "/pd/reserve" and not self._stock:
            return self._reserve(fields)
        if path == "/pd/renew" and not self._stock:
            if self.held.get(fields["rid"]) != fields["generation"]:
                return _flat(410, "kv_grant_gone", "the grant has expired")
            return Answer(200, orjson.dumps({"rid": fields["rid"], "ttl": self._ttl}))
        return Answer(404, b'{"detail":"Not Found"}')

    def _reserve(self, fields: Fields) -> Answer:
        if fields["max_len"] > self._max_seq_len:
            return _flat(400, "context_length_exceeded", f"the window is {self._max_seq_len}")
        attempt = fields.get("attempt")
        if attempt is not None and (fields["rid"], attempt) in self._given_up:
            return _flat(410, "kv_grant_gone", "the request was given up")
        if len(self.held) >= self._slots:
            return _flat(429, "slots_busy", "all slots are busy", **{"retry-after": "3"})
        self._generation += 1
        generation: int = fields.get("generation") or self._generation
        self.held[fields["rid"]] = generation
        grant = {
            "rid": fields["rid"],
            "incarnation": "one",
            "generation": generation,
            "region": self._generation % 4,
            "ttl": self._ttl,
            "slots": self._slots,
        }
        return Answer(200, orjson.dumps(grant))

    async def _decode(self, fields: Fields, receive: Receive, send: Send) -> None:
        rid: str = fields["rid"]
        if not self._stock and self.held.get(rid) != fields.get("generation"):
            await _send(send, _flat(410, "kv_grant_gone", "the grant has expired"))
            return
        self.held.setdefault(rid, 0)
        self.decoding += 1
        try:
            done = await _unless_left(receive, self._stream(fields, send))
            self.left += done is None
        finally:
            self.decoding -= 1
            self.held.pop(rid, None)

    async def _stream(self, fields: Fields, send: Send) -> bool:
        replaced = await self.hooks.get("/pd/decode", _pass_on)(fields)
        if replaced is not None:
            await _send(send, replaced)
            return True
        await send({"type": "http.response.start", "status": 200, "headers": []})
        count: int = fields["max_tokens"]
        done: Fields = {"done": True, "n": count, "finish_reason": "length", "timing_ms": {}}
        end = orjson.dumps(done) + b"\n"
        for index in range(count):
            if index and self._between is not None:
                await self._between(index)
            token = self._token(index) if index else fields["first_token_id"]
            line = orjson.dumps({"t": [token]}) + b"\n"
            last = index == count - 1
            more = not last or self._before_end is not None
            body = line + end if last else line
            await send({"type": "http.response.body", "body": body, "more_body": more})
        if self._before_end is not None:
            await self._before_end()
            await send({"type": "http.response.body", "body": b""})
        return True


async def _unless_left(receive: Receive, work: Awaitable[Any]) -> Any:
    """What ``work`` gives; None if the caller leaves before."""
    result: Any = None

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async with create_task_group() as tasks:
        tasks.start_soon(watch)
        # ASGI's word for a caller that has left, where a write sees it before ``watch`` does.
        with suppress(OSError):
            result = await work
        tasks.cancel_scope.cancel()
    return result
