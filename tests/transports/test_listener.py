from __future__ import annotations

import logging
import socket
import threading

import anyio
import pytest

from tests.transports.kit import SOON
from tilert_transports import listener as module
from tilert_transports.listener import Listener


def echo(sock: socket.socket) -> None:
    while data := sock.recv(16):
        if data == b"boom":
            raise ValueError("boom")
        sock.sendall(data)


def listening() -> tuple[Listener, tuple[str, int]]:
    sock = socket.create_server(("127.0.0.1", 0))
    return Listener(sock, echo), sock.getsockname()


def says(address: tuple[str, int], data: bytes) -> bytes:
    with socket.create_connection(address, timeout=SOON) as visitor:
        visitor.sendall(data)
        return visitor.recv(16)


async def ends(listener: Listener) -> None:
    listener.close()
    listener.close()
    with anyio.fail_after(SOON):
        await listener.ended.wait()
    assert listener.connections == 0


async def test_closing_cuts_every_connection() -> None:
    listener, address = listening()
    visitors = [socket.create_connection(address, timeout=SOON) for _ in range(5)]
    for visitor in visitors:
        visitor.sendall(b"here")
        assert visitor.recv(16) == b"here"
    assert listener.connections == 5
    await ends(listener)
    for visitor in visitors:
        assert visitor.recv(1) == b""
        visitor.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=SOON)


async def test_a_fault_in_serving_one_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    listener, address = listening()
    assert says(address, b"boom") == b""
    assert says(address, b"still here") == b"still here"
    await ends(listener)
    assert "serving a transport's peer failed" in caplog.text


async def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 1)
    listener, address = listening()
    with socket.create_connection(address, timeout=SOON) as first:
        first.sendall(b"first")
        assert first.recv(16) == b"first"
        with socket.create_connection(address, timeout=SOON) as second:
            assert second.recv(1) == b""
    await ends(listener)


class NoThread(threading.Thread):
    """The system has no thread left, as often as ``left`` says."""

    left = 1

    def start(self) -> None:
        if self.name == "tilert-listener" and NoThread.left:
            NoThread.left -= 1
            raise RuntimeError("can't start new thread")
        super().start()


async def test_without_a_thread_one_peer_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener, address = listening()
    monkeypatch.setattr(NoThread, "left", 1)
    monkeypatch.setattr(threading, "Thread", NoThread)
    with caplog.at_level(logging.WARNING), socket.create_connection(address) as refused:
        assert refused.recv(1) == b""
    assert says(address, b"the next") == b"the next"
    await ends(listener)
    assert "can't start new thread" in caplog.text
