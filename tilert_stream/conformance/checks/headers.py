"""Headers and HTTP framing, as proxies and clients of both versions see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..check import Severity, Theme
from ..exchange import Ending, Request
from ..judging import require

if TYPE_CHECKING:
    from ..session import Session

__all__ = ("HEADERS",)

HEADERS: Final = Theme("headers")


def _media_type(value: str | None) -> str:
    return (value or "").partition(";")[0].strip().lower()


@HEADERS.check(
    "json-type",
    Severity.MUST,
    "an answer that is not streamed has the Content-Type application/json",
    "clients choose their parser by it",
)
async def _json_type(session: Session) -> None:
    exchange = (await session.ask()).exchange
    kind = _media_type(exchange.header("content-type"))
    require(kind == "application/json", f"Content-Type is {kind!r}", exchange)


@HEADERS.check(
    "stream-type",
    Severity.MUST,
    "a stream has the Content-Type text/event-stream",
    "HTML standard, event streams; EventSource and several SDKs refuse anything else",
)
async def _stream_type(session: Session) -> None:
    exchange = (await session.ask(stream=True)).exchange
    kind = _media_type(exchange.header("content-type"))
    require(kind == "text/event-stream", f"Content-Type is {kind!r}", exchange)


@HEADERS.check(
    "no-buffering",
    Severity.SHOULD,
    "a stream has Cache-Control: no-cache and X-Accel-Buffering: no",
    "nginx and others hold a stream back otherwise",
)
async def _no_buffering(session: Session) -> None:
    exchange = (await session.ask(stream=True)).exchange
    cached = exchange.header("cache-control") or ""
    require("no-cache" in cached or "no-store" in cached, f"Cache-Control is {cached!r}", exchange)
    buffered = exchange.header("x-accel-buffering")
    require(buffered == "no", f"X-Accel-Buffering is {buffered!r}; nginx wants 'no'", exchange)


@HEADERS.check(
    "no-compression",
    Severity.MUST,
    "a stream is not compressed, also where the client would take it",
    "a compressor collects about 32 kB before anything leaves",
)
async def _no_compression(session: Session) -> None:
    body = session.fields(stream=True)
    accepts = (("accept-encoding", "gzip, br, zstd"),)
    exchange = await session.send(Request(path=session.facts.path, body=body, headers=accepts))
    coding = exchange.header("content-encoding")
    require(coding in (None, "identity"), f"Content-Encoding is {coding!r}", exchange)
    session.read(exchange)


@HEADERS.check(
    "request-id",
    Severity.SHOULD,
    "every answer has an x-request-id, another one each time",
    "the openai SDK shows it as request_id; without it no log line can be found",
)
async def _request_id(session: Session) -> None:
    ids: list[str] = []
    for body in (session.fields(), session.fields(stream=True), b"{"):
        exchange = await session.post(body)
        given = exchange.header("x-request-id")
        require(given, f"status {exchange.status} has no x-request-id", exchange)
        ids.append(given or "")
    require(len(set(ids)) == len(ids), f"an id was given twice: {ids}")


@HEADERS.check(
    "hostile-id",
    Severity.SHOULD,
    "two requests with one x-request-id, of which one is long or not ASCII, are both answered",
    "ids that collide crash engines that key their requests by them",
)
async def _hostile_id(session: Session) -> None:
    for given in ("same", "same", "x" * 4096, "\xe9\xff"):
        exchange = await session.send(
            Request(
                path=session.facts.path,
                body=session.fields(),
                headers=(("x-request-id", given),),
            )
        )
        fine = exchange.status == 200 or 400 <= exchange.status < 500
        require(fine, f"status {exchange.status} for the id {given[:20]!r}", exchange)


@HEADERS.check(
    "keep-alive",
    Severity.SHOULD,
    "after a complete stream the same connection serves the next request",
    "RFC 9112, 9.3; a client that pools connections pays a handshake a request otherwise",
)
async def _keep_alive(session: Session) -> None:
    body = session.fields(stream=True)
    request = Request(path=session.facts.path, body=body, keep_alive=True)
    async with session.connection() as wire:
        exchange = await wire.exchange(request)
        session.read(exchange)
        closing = "close" in (exchange.header("connection") or "").lower()
        require(not closing, "the answer says 'Connection: close'", exchange)
        chunked = (exchange.header("transfer-encoding") or "").lower() == "chunked"
        sized = exchange.header("content-length") is not None
        require(chunked or sized, "only the connection's end ends the stream", exchange)
        again = await wire.exchange(request)
    require(again.status == 200, "the second request has no answer", again)


@HEADERS.check(
    "http-1.0",
    Severity.SHOULD,
    "a client of HTTP/1.0 gets a stream without chunk sizes, which ends with the connection",
    "RFC 9112, 6.1; nginx talks HTTP/1.0 to its upstreams unless told otherwise",
)
async def _http10(session: Session) -> None:
    body = session.fields(stream=True)
    exchange = await session.send(Request(path=session.facts.path, body=body, http10=True))
    require(exchange.status == 200, f"status {exchange.status}; it must be 200", exchange)
    coding = exchange.header("transfer-encoding")
    require(coding is None, f"Transfer-Encoding is {coding!r}", exchange)
    require(exchange.ending is Ending.COMPLETE, f"the answer was {exchange.ending}", exchange)
