"""Landing memory is shown to the device once; its runs are copied by one call."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch

from tilert_engine.layouts import host_memory
from tilert_engine.layouts.host_memory import copy_runs, page_locked
from tilert_transports.host_memory import HostMemory

CUDA = torch.device("cuda")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


class Function:
    """One of a library's: ``ctypes`` lets its types be set."""

    def __init__(self, library: FakeLibrary, name: str) -> None:
        self.argtypes: tuple[type, ...] = ()
        self._library = library
        self._name = name

    def __call__(self, *arguments: int) -> int:
        assert len(arguments) == len(self.argtypes)
        return self._library.called(self._name, arguments)


class FakeLibrary:
    """The CUDA runtime, of a device whose memory is the host's."""

    def __init__(self) -> None:
        self.refuses = 0
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.cudaHostRegister = Function(self, "lock")
        self.cudaHostUnregister = Function(self, "unlock")
        self.cudaMemcpy2DAsync = Function(self, "copy")
        self.cudaGetLastError = Function(self, "forget")

    def called(self, name: str, arguments: tuple[int, ...]) -> int:
        self.calls.append((name, arguments))
        if self.refuses and name != "forget":
            return self.refuses
        if name == "copy":
            to, to_apart, source, apart, width, height, kind, stream = arguments
            assert (kind, stream) == (1, 77)
            for row in range(height):
                ctypes.memmove(to + row * to_apart, source + row * apart, width)
        return 0

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Stream(NamedTuple):
    cuda_stream: int = 77


def pinned(_tensor: torch.Tensor) -> bool:
    return True


def pageable(_tensor: torch.Tensor) -> bool:
    return False


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLibrary]:
    fake = FakeLibrary()

    def load(_name: str | None) -> FakeLibrary:
        return fake

    def synchronize(_device: torch.device) -> None:
        fake.calls.append(("wait", ()))

    def current_stream(_device: torch.device) -> Stream:
        return Stream()

    find = vars(host_memory)["_runtime"]
    find.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(torch.cuda, "device", nullcontext[None])
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.Tensor, "is_pinned", pinned)
    yield fake
    find.cache_clear()


def test_memory_is_locked_once_and_until_nothing_reads_it(library: FakeLibrary) -> None:
    memory = HostMemory.anonymous(8192)
    with page_locked(memory.view, CUDA):
        assert library.calls == [("lock", (memory.address, 8192, 1))]
    assert library.calls[1:] == [("wait", ()), ("unlock", (memory.address,))]


def test_a_refusal_is_told_and_forgotten(
    library: FakeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    library.refuses = 801
    with caplog.at_level(logging.WARNING), page_locked(HostMemory.anonymous(4096).view, CUDA):
        assert "(CUDA error 801)" in caplog.text
    # Else torch would raise it after its next kernel.
    assert library.names == ["lock", "forget"]


def test_a_cpu_needs_none_of_it(library: FakeLibrary) -> None:
    with page_locked(HostMemory.anonymous(4096).view, torch.device("cpu")):
        assert not library.calls


@pytest.mark.parametrize("layers", [1, 3])
def test_runs_that_lie_apart_are_one_copy(library: FakeLibrary, layers: int) -> None:
    region = torch.arange(3 * 10 * 7, dtype=torch.uint8).view(3, 10, 7)
    source = region[:layers, :6]
    target = torch.zeros(layers, 6, 7, dtype=torch.uint8)
    copy_runs(target, source)
    assert torch.equal(target, source)
    assert library.names == ["copy"]


@pytest.mark.parametrize("locked", [False, True])
def test_what_is_not_locked_or_no_run_of_bytes_is_copied_by_torch(
    library: FakeLibrary, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    whole = torch.arange(24, dtype=torch.uint8).view(2, 4, 3)
    source = whole[..., :2] if locked else whole[:, :3]
    if not locked:
        monkeypatch.setattr(torch.Tensor, "is_pinned", pageable)
    target = torch.zeros_like(source)
    copy_runs(target, source)
    assert torch.equal(target, source)
    assert not library.calls


def test_a_copy_that_is_refused_says_what_it_was(library: FakeLibrary) -> None:
    library.refuses = 1
    source = torch.zeros(2, 4, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=r"2 runs of 4 B .* CUDA error 1"):
        copy_runs(torch.zeros_like(source), source)
    assert library.names == ["copy", "forget"]


@needs_cuda
def test_a_device_reads_locked_memory_that_others_map() -> None:
    from tilert_transports.host_memory import prefault
    from tilert_transports.shm_memory import SharedMemory

    memory = SharedMemory(1 << 20)
    prefault(memory)
    region = torch.frombuffer(memory.view, dtype=torch.uint8).view(4, -1)
    region.copy_(torch.randint(0, 255, region.shape, dtype=torch.uint8))
    target = torch.zeros(4, 1000, dtype=torch.uint8, device=CUDA)
    with page_locked(memory.view, CUDA):
        assert region.is_pinned()
        copy_runs(target, region[:, :1000])
        torch.cuda.synchronize()
    assert torch.equal(target.cpu(), region[:, :1000])
    assert not region.is_pinned()
    torch.zeros(8, device=CUDA).sum().item()  # no error was left behind
