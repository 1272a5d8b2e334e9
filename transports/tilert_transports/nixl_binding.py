"""NIXL's native agent as this package uses it, and how it is made.

In: an agent's name. Out: a native ``nixlAgent`` with one UCX backend. The wheel's Python wrapper is
passed by: it fixes the progress thread's delay at 0, which makes that thread spin a whole core.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import TYPE_CHECKING, Final, NewType, Protocol, cast

from .errors import TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = (
    "AgentConfig",
    "BackendHandle",
    "Binding",
    "Descriptors",
    "MemoryKind",
    "NativeAgent",
    "Registration",
    "Status",
    "SyncMode",
    "TransferHandle",
    "TransferOp",
    "installed",
    "load",
    "make_agent",
)

PACKAGES: Final = ("nixl", "nixl_cu13", "nixl_cu12", "nixl_rocm")
"""The first is the shim that picks the wheel for this machine's driver."""

PROGRESS_DELAY_US: Final = 10_000
"""Its progress thread is woken by events; this only bounds how long it sleeps without one. At 0 it
never sleeps; 10 ms costs 0.3 % of a core."""

MemoryKind = NewType("MemoryKind", object)
SyncMode = NewType("SyncMode", object)
TransferOp = NewType("TransferOp", object)
Status = NewType("Status", object)
Descriptors = NewType("Descriptors", object)
Registration = NewType("Registration", object)
TransferHandle = NewType("TransferHandle", int)
BackendHandle = NewType("BackendHandle", int)


class AgentConfig(Protocol):
    """``nixlAgentConfig``."""

    useProgThread: bool  # noqa: N815 - NIXL's name
    pthrDelay: int  # noqa: N815 - NIXL's name
    syncMode: SyncMode  # noqa: N815 - NIXL's name


class NativeAgent(Protocol):
    """``nixlAgent``. Failures are raised, each class straight from ``Exception``."""

    def createBackend(self, name: str, options: dict[str, str], /) -> BackendHandle:  # noqa: N802
        """Start UCX."""
        ...

    def registerMem(  # noqa: N802
        self, descs: Registration, backends: Sequence[BackendHandle], /
    ) -> Status:
        """Register memory."""
        ...

    def deregisterMem(  # noqa: N802
        self, descs: Registration, backends: Sequence[BackendHandle], /
    ) -> Status:
        """Forget memory; peers that know it can still write to it."""
        ...

    def getLocalMD(self) -> bytes:  # noqa: N802
        """What a peer needs: connection and regions."""
        ...

    def loadRemoteMD(self, metadata: bytes, /) -> bytes:  # noqa: N802
        """Learn of a peer; its name."""
        ...

    def invalidateRemoteMD(self, name: str, /) -> Status:  # noqa: N802
        """Forget a peer."""
        ...

    def createXferReq(  # noqa: N802
        self, operation: TransferOp, local: Descriptors, remote: Descriptors, name: str, /
    ) -> TransferHandle:
        """Prepare a transfer; checks both lists."""
        ...

    def postXferReq(self, handle: TransferHandle, /) -> Status:  # noqa: N802
        """Start a transfer. May move all the bytes before it returns."""
        ...

    def getXferStatus(self, handle: TransferHandle, /) -> Status:  # noqa: N802
        """Look at a transfer."""
        ...

    def releaseXferReq(self, handle: TransferHandle, /) -> Status:  # noqa: N802
        """Free a finished transfer's handle."""
        ...


class Binding(Protocol):
    """The native module ``_bindings``."""

    DRAM_SEG: MemoryKind
    VRAM_SEG: MemoryKind
    NIXL_WRITE: TransferOp
    NIXL_READ: TransferOp
    NIXL_SUCCESS: Status
    NIXL_IN_PROG: Status
    NIXL_THREAD_SYNC_STRICT: SyncMode
    nixlRemoteDisconnectError: type[Exception]  # noqa: N815 - NIXL's name
    nixlBackendError: type[Exception]  # noqa: N815 - NIXL's name

    def nixlAgentConfig(self) -> AgentConfig:  # noqa: N802
        """A configuration with NIXL's defaults."""
        ...

    def nixlAgent(self, name: str, config: AgentConfig, /) -> NativeAgent:  # noqa: N802
        """An agent without a backend."""
        ...

    def nixlXferDList(self, kind: MemoryKind, rows: NDArray[np.uint64], /) -> Descriptors:  # noqa: N802
        """Rows of address, bytes, device."""
        ...

    def nixlRegDList(self, kind: MemoryKind, rows: NDArray[np.uint64], /) -> Registration:  # noqa: N802
        """Rows of address, bytes, device."""
        ...


def installed() -> bool:
    """Whether any NIXL wheel is there; nothing is loaded."""
    return any(importlib.util.find_spec(package) is not None for package in PACKAGES)


def load() -> Binding:
    """Import NIXL. Blocks for a quarter of a second, the first time.

    :raises TransportUnavailable: no wheel, or it does not load here.
    """
    raise_exceptions = logging.raiseExceptions
    failures: list[str] = []
    try:
        for package in PACKAGES:
            try:
                importlib.import_module(package)
                return cast("Binding", importlib.import_module(f"{package}._bindings"))
            except ImportError as error:
                failures.append(f"{package}: {error}")
    finally:
        # NIXL switches off, for the whole process, what logging says about its own faults.
        logging.raiseExceptions = raise_exceptions
    raise TransportUnavailable(
        f"NIXL cannot be loaded ({'; '.join(failures)}); pip install 'tilert-stream[nixl]'"
    )


def make_agent(binding: Binding, name: str) -> NativeAgent:
    """A native agent with UCX. Blocks for about a second: UCX looks at every device.

    :raises TransportUnavailable: UCX does not start.
    """
    config = binding.nixlAgentConfig()
    config.useProgThread = True
    config.pthrDelay = PROGRESS_DELAY_US
    # Without it the agent's locks do nothing, and the progress thread is a second thread.
    config.syncMode = binding.NIXL_THREAD_SYNC_STRICT
    try:
        agent = binding.nixlAgent(name, config)
        agent.createBackend("UCX", {})
    except Exception as error:
        raise TransportUnavailable(f"NIXL's UCX backend does not start: {error}") from error
    return agent
