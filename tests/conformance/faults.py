"""One fault a check: the server that it must not let pass."""

from __future__ import annotations

import gzip
import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.conformance.spoiling import After, Before, nothing

if TYPE_CHECKING:
    from tests.conformance.spoiling import Asked, Reply


class Fault(NamedTuple):
    check: str
    before: Before = nothing
    after: After = nothing
    making: Callable[[], After] | None = None
    """Makes ``after`` for one test, where it remembers something."""


Where = Callable[["Asked", "Reply"], object]


def streams(asked: Asked, reply: Reply) -> bool:
    return asked.stream and reply.status == 200


def plain(asked: Asked, reply: Reply) -> bool:
    return bool(asked.fields) and not asked.stream and reply.status == 200


def fails(_asked: Asked, reply: Reply) -> bool:
    return 400 <= reply.status < 500


def replaced(where: Where, old: bytes, new: bytes, count: int = -1) -> After:
    def after(asked: Asked, reply: Reply) -> None:
        if where(asked, reply):
            reply.body = reply.body.replace(old, new, count)

    return after


def rewritten(where: Where, pattern: bytes, new: bytes, count: int = 0) -> After:
    def after(asked: Asked, reply: Reply) -> None:
        if where(asked, reply):
            reply.body = re.sub(pattern, new, reply.body, count=count)

    return after


def headed(where: Where, **headers: str | None) -> After:
    def after(asked: Asked, reply: Reply) -> None:
        for name, value in headers.items() if where(asked, reply) else ():
            key = name.replace("_", "-").encode()
            reply.headers.pop(key, None)
            if value is not None:
                reply.headers[key] = value.encode()

    return after


def answered(where: Where, status: int, body: bytes | None = None) -> After:
    def after(asked: Asked, reply: Reply) -> None:
        if where(asked, reply):
            reply.status = status
            reply.body = reply.body if body is None else body

    return after


def ignored(*names: str) -> Before:
    def before(asked: Asked) -> None:
        for name in names:
            asked.fields.pop(name, None)

    return before


def changed(name: str, change: Callable[[Any], object]) -> Before:
    """Changes a field where it is there."""

    def before(asked: Asked) -> None:
        if name in asked.fields:
            asked.fields[name] = change(asked.fields[name])

    return before


def has(name: str) -> Where:
    return lambda asked, _reply: name in asked.fields


def to(path: str) -> Where:
    return lambda asked, _reply: asked.path.startswith(path)


def holds(raw: bytes) -> Where:
    return lambda asked, _reply: raw in asked.raw


def _stops_if(condition: Callable[[Asked], object]) -> Before:
    """Ignores stop where the condition holds."""

    def before(asked: Asked) -> None:
        if condition(asked):
            asked.fields.pop("stop", None)

    return before


def _asks_for_usage(asked: Asked) -> None:
    if asked.stream:
        asked.fields["stream_options"] = {"include_usage": True}


def _compressed(asked: Asked, reply: Reply) -> None:
    if streams(asked, reply) and b"gzip" in asked.headers.get(b"accept-encoding", b""):
        reply.headers[b"content-encoding"] = b"gzip"
        reply.body = gzip.compress(reply.body)


def _cut(asked: Asked, reply: Reply) -> None:
    reply.cut = asked.http_version == "1.0"


def _another_each_time() -> After:
    numbers = itertools.count()

    def after(asked: Asked, reply: Reply) -> None:
        if asked.fields.get("temperature") == 1:
            said = b'"content":"%d' % next(numbers)
            reply.body = reply.body.replace(b'"content":"', said)

    return after


def _counts_up() -> After:
    numbers = itertools.count()

    def after(asked: Asked, reply: Reply) -> None:
        if asked.path == "/metrics":
            reply.status = 200
            reply.body = b'vllm:num_requests_running{model_name="m"} %d\n' % next(numbers)

    return after


def _dies_of_errors() -> After:
    wrong: list[int] = []

    def after(asked: Asked, reply: Reply) -> None:
        if wrong:
            reply.status = 503
        if fails(asked, reply) and asked.raw == b"":
            wrong.append(reply.status)

    return after


def _event_for_an_error(asked: Asked, reply: Reply) -> None:
    if fails(asked, reply) and asked.stream:
        reply.status = 200
        reply.headers[b"content-type"] = b"text/event-stream"
        reply.body = b"data: " + reply.body + b"\n\n"


def _opens_to_all(asked: Asked) -> None:
    asked.headers[b"authorization"] = b"Bearer secret"


def _has_parts(asked: Asked, _reply: Reply) -> bool:
    return b'"content":[' in asked.raw


DONE = b"data: [DONE]\n\n"
BROKEN = "\ufffd".encode()
MORE_PROMPT = (b'"prompt_tokens":', b'"prompt_tokens":1')
FINISH_AGAIN = rewritten(streams, rb'(data: [^\n]*"finish_reason":"[^\n]*\n\n)', rb"\1\1")
NO_FINISH = rewritten(streams, rb'"finish_reason":"\w+"', b'"finish_reason":null')
TRACE = b'{"error":{"message":"Traceback (most recent call last)","type":"x"}}'


FAULTS = [
    Fault("models.list", after=replaced(to("/v1/models"), b'"list"', b'"models"')),
    Fault("models.retrieve", after=answered(to("/v1/models/"), 404)),
    Fault("models.named", after=replaced(plain, b'"model":"echo"', b'"model":null')),
    Fault("models.named", after=replaced(streams, b'"model":"echo"', b'"model":null')),
    Fault("answers.chat", after=replaced(plain, b'"length"', b"null")),
    Fault("answers.completions", after=replaced(plain, b'"text_completion"', b'"completion"')),
    Fault("answers.either", after=answered(has("temperature"), 500)),
    Fault("headers.json-type", after=headed(plain, content_type="text/plain")),
    Fault("headers.stream-type", after=headed(streams, content_type="application/json")),
    Fault("headers.no-buffering", after=headed(streams, x_accel_buffering=None)),
    Fault("headers.no-buffering", after=headed(streams, cache_control="public")),
    Fault("headers.no-compression", after=_compressed),
    Fault("headers.request-id", after=headed(to("/v1"), x_request_id="1")),
    Fault("headers.request-id", after=headed(streams, x_request_id=None)),
    Fault("headers.hostile-id", after=answered(lambda a, _r: b"\xe9" in str(a.headers).encode()
          or any(len(v) > 999 for v in a.headers.values()), 500)),
    Fault("headers.keep-alive", after=headed(streams, connection="close")),
    Fault("headers.http-1.0", after=_cut),
    Fault("sse.framing", after=replaced(streams, b"data: ", b"data:")),
    Fault("sse.framing", after=replaced(streams, DONE, DONE[:-1])),
    Fault("sse.data-only", after=replaced(streams, b"data: ", b": ping\n\ndata: ", 1)),
    Fault("sse.data-only", after=replaced(streams, b"data: ", b"id: 1\ndata: ", 1)),
    Fault("sse.done", after=replaced(streams, DONE, b"")),
    Fault("sse.done", after=replaced(streams, DONE, DONE + DONE)),
    Fault("sse.json", after=replaced(streams, DONE, b"data: {oops\n\n" + DONE)),
    Fault("sse.line-breaks", after=replaced(streams, b"\\u2028", "\u2028".encode())),
    Fault("sse.shape", after=replaced(streams, b'"index":0,', b"", 1)),
    Fault("sse.shape", after=replaced(streams, b'"delta":{}', b'"delta":null')),
    Fault("sse.completions", after=replaced(streams, b'"text_completion"', b'"text"')),
    Fault("sse.envelope", after=replaced(streams, b'"id":"', b'"id":"x', 1)),
    Fault("sse.role", after=replaced(streams, b'"role":"assistant",', b"")),
    Fault("sse.role", after=replaced(streams, b'"delta":{"c', b'"delta":{"role":"assistant","c')),
    Fault("sse.finish", after=FINISH_AGAIN),
    Fault("sse.finish", after=NO_FINISH),
    Fault("sse.same-text", after=replaced(streams, b'"content":"C"', b'"content":"X"', 1)),
    Fault("usage.plain", after=replaced(plain, b'"total_tokens":', b'"total_tokens":1')),
    Fault("usage.plain", after=replaced(plain, b'"completion_tokens":', b'"made":')),
    Fault("usage.not-unasked", before=_asks_for_usage),
    Fault("usage.asked", before=ignored("stream_options")),
    Fault("usage.once", before=changed("stream_options", lambda given: {
        **given, "continuous_usage_stats": True})),
    Fault("usage.counts", before=changed("max_tokens", lambda n: n + 1 if n == 3 else n)),
    Fault("usage.same", after=replaced(streams, *MORE_PROMPT)),
    Fault("usage.continuous", after=replaced(
        streams, b'"completion_tokens":2,', b'"completion_tokens":9,', 1)),
    Fault("usage.length", after=replaced(streams, b'"length"', b'"stop"')),
    Fault("stop.plain", before=_stops_if(lambda asked: not asked.stream)),
    Fault("stop.stream", before=_stops_if(lambda asked: asked.stream)),
    Fault("stop.across-tokens", before=_stops_if(lambda a: len(str(a.fields.get("stop"))) > 4)),
    Fault("stop.list", before=changed("stop", lambda stop: stop[:1])),
    Fault("stop.tail", before=changed("stop", lambda stop: stop[:3])),
    Fault("stop.none", after=answered(has("stop"), 400)),
    Fault("stop.wrong-type", before=ignored("stop")),
    Fault("stop.usage", after=rewritten(
        has("stop"), rb'"completion_tokens":\d+', b'"completion_tokens":48')),
    Fault("stop.included", before=ignored("include_stop_str_in_output")),
    Fault("utf8.whole-characters", after=replaced(
        streams, b'"content":"', b'"content":"' + BROKEN, 1)),
    Fault("utf8.every-cut", after=replaced(streams, BROKEN, b"")),
    Fault("utf8.events", after=replaced(streams, b'"content":"', b'"content":"\xff', 1)),
    Fault("utf8.escapes", after=replaced(holds(b"\\ud83c"), *MORE_PROMPT)),
    Fault("utf8.trickle", after=answered(lambda asked, _reply: asked.parts > 1, 400)),
    Fault("utf8.lone-surrogate", after=answered(holds(b"\\ud800"), 500)),
    Fault("utf8.broken-body", after=answered(holds(b"\xff"), 200)),
    Fault("utf8.spaces", after=replaced(streams, b'"content":" "', b'"content":""')),
    Fault("parameters.max-tokens", before=ignored("max_completion_tokens")),
    Fault("parameters.bench-body", after=answered(has("repetition_penalty"), 400)),
    Fault("parameters.inert", after=answered(has("metadata"), 400)),
    Fault("parameters.null", after=answered(has("presence_penalty"), 400)),
    Fault("parameters.content-parts", after=replaced(_has_parts, *MORE_PROMPT)),
    Fault("parameters.n", before=ignored("n")),
    Fault("parameters.n", after=answered(has("n"), 400, b"{}")),
    Fault("parameters.logprobs", before=ignored("logprobs", "top_logprobs")),
    Fault("parameters.json-object", before=ignored("response_format")),
    Fault("parameters.tools", before=ignored("tools", "tool_choice"),
          after=replaced(has("messages"), b'"length"', b'"stop"')),
    Fault("parameters.logit-bias", before=ignored("logit_bias")),
    Fault("parameters.seed", making=_another_each_time),
    Fault("parameters.echo", before=ignored("echo")),
    Fault("parameters.min-tokens", before=ignored("min_tokens")),
    Fault("parameters.token-ids", before=changed(
        "prompt", lambda prompt: prompt if isinstance(prompt, str) else "x")),
    Fault("errors.invalid", after=answered(fails, 500)),
    Fault("errors.object", after=answered(fails, 400, b'{"error":"wrong"}')),
    Fault("errors.object", after=answered(fails, 400, b'{"message":"wrong","type":"x"}')),
    Fault("errors.json-type", after=headed(fails, content_type="text/html")),
    Fault("errors.names-field", after=answered(fails, 400, b'{"error":{"message":"no"}}')),
    Fault("errors.stream", after=_event_for_an_error),
    Fault("errors.range", before=changed("temperature", lambda t: 0 if t == -1 else t)),
    Fault("errors.model", before=changed("model", lambda _name: "echo")),
    Fault("errors.path", after=answered(fails, 404, b"<html>")),
    Fault("errors.method", after=headed(fails, allow=None)),
    Fault("errors.too-long", before=changed(
        "max_tokens", lambda n: n if isinstance(n, str) else min(n, 16))),
    Fault("errors.no-traceback", after=answered(fails, 400, TRACE)),
    Fault("errors.key", before=_opens_to_all),
    Fault("errors.serves-on", making=_dies_of_errors),
    Fault("errors.prompt-list", before=changed(
        "prompt", lambda prompt: prompt if isinstance(prompt, str) else prompt[0])),
    Fault("disconnect.gauge", making=_counts_up),
]  # fmt: skip
"""The faults of leaving and of time are apps of their own."""
