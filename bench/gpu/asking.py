"""The client, a process: a request's size a line in, its moments a line out.

    python -m bench.gpu.asking

A line is ``PORT PROMPT_TOKENS MAX_TOKENS``; the answer is JSON, moments in nanoseconds of
``CLOCK_MONOTONIC``. One token is asked for as a router asks a prefill node, several as a client
asks a router. A plain blocking socket: nothing else runs here.
"""

from __future__ import annotations

import gc
import json
import socket
import sys
import time

DONE = b"data: [DONE]\n\n"


def main() -> None:
    gc.disable()  # its pauses would be the server's
    for line in sys.stdin:
        port, prompt, tokens = map(int, line.split())
        print(json.dumps(ask(port, prompt, tokens)), flush=True)


def ask(port: int, prompt: int, tokens: int) -> dict[str, int | str]:
    streamed = tokens > 1
    fields = {
        "model": "tiny-glm5",
        "prompt": [100 + place % 500 for place in range(prompt)],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    if streamed:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps(fields).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = time.monotonic_ns()
        connection.sendall(head.encode() + body)
        received, first, done, now = b"", 0, 0, 0
        while part := connection.recv(1 << 16):
            now = time.monotonic_ns()
            received += part
            if not first and b"data: " in received:
                first = now
            if DONE in received[-len(part) - len(DONE) :]:
                done = now
    if not streamed and b'"choices"' in received:
        first = done = now
    usage = received.rfind(b'"completion_tokens":')
    counted = received[usage + 20 : usage + 30].split(b",")[0].split(b"}")[0] if usage > 0 else b"0"
    failed = "" if done else received[:2000].decode("utf-8", "replace")
    return {
        "asked": asked,
        "first": first,
        "done": done,
        "tokens": int(counted),
        "failed": failed,
    }


if __name__ == "__main__":
    main()
