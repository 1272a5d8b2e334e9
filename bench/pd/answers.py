"""What a router has answered, by its moments: a client's reads in, ``Answer`` out.

Routers cut chunks where they please, also inside an event: chunks are joined before events are
looked for, and a token has arrived with the read that has its last byte.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from bench.client import CONTENT, DONE, Answer

if TYPE_CHECKING:
    from bench.client import Recording

__all__ = ("parse",)


def parse(recording: Recording) -> Answer:
    """Find the tokens.

    :raises RuntimeError: the request was refused.
    """
    data = b"".join(read for _, read in recording.reads)
    if data and not data.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"stream {recording.stream} was refused: {data[:400]!r}")
    begin = data.find(b"\r\n\r\n") + 4
    # What is whole before its head has left may come without chunks.
    chunked = b"transfer-encoding: chunked" in data[:begin].lower()
    chunks = _chunks(data, begin) if chunked else [(begin, len(data))]
    ends = list(accumulate(end - begin for begin, end in chunks))
    read_ends = list(accumulate(len(read) for _, read in recording.reads))

    def arrival(content_end: int) -> int:
        chunk = bisect_left(ends, content_end)
        raw_end = chunks[chunk][1] - (ends[chunk] - content_end)
        return recording.reads[bisect_left(read_ends, raw_end)][0]

    content = b"".join(data[begin:end] for begin, end in chunks)
    tokens = [
        moment
        for event in CONTENT.finditer(content)
        for moment in [arrival(event.end())] * len(event[1])
    ]
    found = content.find(DONE)
    done = arrival(found + len(DONE)) if found >= 0 else 0
    return Answer(recording.stream, recording.asked, tokens, done, len(chunks))


def _chunks(data: bytes, at: int) -> list[tuple[int, int]]:
    """Where the content of each chunk begins and ends; one that has not come whole is left out."""
    chunks: list[tuple[int, int]] = []
    while (line_end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line_end], 16)
        begin, end = line_end + 2, line_end + 2 + size
        if not size or end > len(data):
            break
        chunks.append((begin, end))
        at = end + 2
    return chunks
