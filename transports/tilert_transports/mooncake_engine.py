"""Mooncake's transfer engine as this package uses it: started on use, calls in place of codes.

In: addresses. Out: bytes at a peer's addresses, or an exception. Every call blocks and releases the
interpreter's lock. The library answers -1 to whatever goes wrong, and cannot cancel.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Protocol, cast

from .errors import RegionInvalid, TransferFailed, TransportClosed, TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .host_memory import HostMemory

__all__ = ("MooncakeEngine", "NativeEngine")


class NativeEngine(Protocol):
    """``mooncake.engine.TransferEngine``."""

    def initialize(self, host: str, metadata: str, protocol: str, device: str, /) -> int:
        """Start; 0 is success, here and below."""
        ...

    def get_rpc_port(self) -> int:
        """Where peers ask for this engine."""
        ...

    def register_memory(self, address: int, nbytes: int, /) -> int:
        """Register memory."""
        ...

    def unregister_memory(self, address: int, /) -> int:
        """Forget memory."""
        ...

    def transfer_sync_read(self, session: str, here: int, there: int, nbytes: int, /) -> int:
        """Read a peer's memory."""
        ...

    def batch_transfer_sync_write(
        self, session: str, here: Sequence[int], there: Sequence[int], nbytes: Sequence[int], /
    ) -> int:
        """Write a peer's memory; returns when all is there."""
        ...


class MooncakeEngine:
    """One engine, started by the first call that needs it.

    :param host: the address that peers dial. The engine listens on every address all the same.
    :param protocol: ``tcp`` or ``rdma``.
    :param device: the RDMA device; empty for all.
    """

    def __init__(self, host: str, protocol: str, device: str) -> None:
        self._host = host
        self._protocol = protocol
        self._device = device
        self._lock = threading.Lock()
        self._native: NativeEngine | None = None
        self._stopped = False

    def _started(self) -> NativeEngine:
        with self._lock:
            if self._stopped:
                raise TransportClosed("the mooncake engine has ended")
            if self._native is None:
                self._native = self._start()
            return self._native

    def _start(self) -> NativeEngine:
        try:
            module = importlib.import_module("mooncake.engine")
        except ImportError as error:
            raise TransportUnavailable(
                f"Mooncake does not load ({error}); pip install mooncake-transfer-engine (or its"
                " variant for this machine) and the system's libibverbs1"
            ) from error
        native = cast("NativeEngine", module.TransferEngine())
        if native.initialize(self._host, "P2PHANDSHAKE", self._protocol, self._device) != 0:
            raise TransportUnavailable(
                f"Mooncake does not start on {self._host!r} with protocol {self._protocol!r},"
                f" device {self._device!r}; its own log is on stderr"
            )
        return native

    def session(self) -> str:
        """What peers call this engine: host and port."""
        return f"{self._host}:{self._started().get_rpc_port()}"

    def register(self, memory: HostMemory) -> None:
        """Register host memory.

        :raises RegionInvalid: the engine refuses it.
        """
        code = self._started().register_memory(memory.address, memory.nbytes)
        if code != 0:
            raise RegionInvalid(
                f"Mooncake does not register {memory.nbytes} bytes (code {code}); the memory must"
                " not overlap a registered region"
            )

    def unregister(self, memory: HostMemory) -> None:
        """Forget host memory."""
        self._started().unregister_memory(memory.address)

    def read(self, session: str, here: int, there: int, nbytes: int) -> None:
        """Read from a peer.

        :raises TransferFailed: for whatever reason.
        """
        code = self._started().transfer_sync_read(session, here, there, nbytes)
        if code != 0:
            raise TransferFailed(f"Mooncake could not read from {session} (code {code})")

    def write(
        self, session: str, here: Sequence[int], there: Sequence[int], nbytes: Sequence[int]
    ) -> None:
        """Write to a peer.

        :raises TransferFailed: for whatever reason; it may still go on.
        """
        code = self._started().batch_transfer_sync_write(session, here, there, nbytes)
        if code != 0:
            raise TransferFailed(
                f"Mooncake could not write to {session} (code {code})", settled=False
            )

    def stop(self) -> None:
        """End the engine; peers cannot write here any more."""
        with self._lock:
            self._stopped = True
            self._native = None
