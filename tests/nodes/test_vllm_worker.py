from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

from tests.nodes.test_vllm_paged import drawn, written_cpu_packed, written_cuda_packed
from tilert_engine.layouts.abc import KVLayout
from tilert_engine.layouts.gqa import GqaLayout
from tilert_stream.errors import Busy, ConfigError
from tilert_stream.nodes.hand_over.destination import Destination
from tilert_stream.nodes.vllm.gqa_reader import GqaReader
from tilert_stream.nodes.vllm.ledger import Extraction, StepWork, Withdrawal
from tilert_stream.nodes.vllm.place import Place
from tilert_stream.nodes.vllm.worker import Worker

NODE = Destination("node", 5556)
LAYOUT = GqaLayout(model="m", layers=2, kv_heads=2, head_dim=3, dtype="float32", max_seq_len=8)
BLOCK = 2


@dataclass
class FakeHandOver:
    staging: memoryview
    did: list[str] = field(default_factory=list[str])

    def send(self) -> None:
        self.did.append("send")

    def abort(self, reason: str) -> None:
        self.did.append(f"abort: {reason}")

    def wait(self) -> None:
        self.did.append("wait")


@dataclass
class FakeSender:
    layout: KVLayout = LAYOUT
    rank: int = 0
    refuses: frozenset[str] = frozenset()
    begun: dict[str, FakeHandOver] = field(default_factory=dict[str, FakeHandOver])
    withdrawn: list[Withdrawal] = field(default_factory=list[Withdrawal])
    memory: memoryview = field(default_factory=lambda: memoryview(bytearray()))
    room: int | None = None
    """Bytes of a staging area; None: as many as are needed."""

    def begin(self, extraction: Extraction) -> FakeHandOver:
        if extraction.request_id in self.refuses:
            raise Busy("no staging memory came free")
        nbytes = self.layout.staging_bytes(extraction.seq_len, self.rank)
        staging = memoryview(bytearray(nbytes if self.room is None else self.room))
        return self.begun.setdefault(extraction.request_id, FakeHandOver(staging))

    def withdraw(self, withdrawal: Withdrawal) -> None:
        self.withdrawn.append(withdrawal)

    def close(self) -> None:
        pass


def caches(*layers: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"model.layers.{i}.self_attn.attn": layer for i, layer in enumerate(layers)}


def read_all(found: dict[str, torch.Tensor], layout: GqaLayout = LAYOUT) -> GqaReader:
    return GqaReader(found, layout, block_size=BLOCK, rank=0)


def extraction(request_id: str, seq_len: int, *blocks: int) -> Extraction:
    return Extraction(request_id, NODE, seq_len, 0, "0" * 16, blocks)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_staging_is_what_the_layout_says(rank: int) -> None:
    layout = replace(LAYOUT, kv_heads=4, senders=2)
    rows = [drawn(5), drawn(5) + 1000]
    worker_caches = caches(*(written_cpu_packed(layer, [3, 0, 2], BLOCK, 4) for layer in rows))
    sender = FakeSender(layout, rank)
    reader = GqaReader(worker_caches, layout, block_size=BLOCK, rank=rank)
    Worker(reader, sender).run(StepWork((extraction("r", 5, 3, 0, 2),)))
    hand_over = sender.begun["r"]
    assert hand_over.did == ["send"]
    staged = layout.staged(hand_over.staging, 5, rank)
    for layer in range(2):
        assert torch.equal(staged.keys[layer], rows[layer][:, 0])
        assert torch.equal(staged.values[layer], rows[layer][:, 1])


def test_kv_09_what_is_sent_is_of_the_step_although_vllm_uses_its_blocks_again() -> None:
    """They are the next request's when the step is over, long before the cache has travelled."""
    rows = [drawn(4), drawn(4) + 1000]
    layers = [written_cpu_packed(row, [3, 0], BLOCK, 4) for row in rows]
    sender = FakeSender()
    worker = Worker(read_all(caches(*layers)), sender)
    worker.run(StepWork((extraction("r", 4, 3, 0),)))
    for cache in layers:
        cache.fill_(-1)
    worker.run(StepWork((extraction("next", 4, 3, 0),)))
    staged = LAYOUT.staged(sender.begun["r"].staging, 4)
    for number, row in enumerate(rows):
        assert torch.equal(staged.keys[number], row[:, 0])
        assert torch.equal(staged.values[number], row[:, 1])
    assert (LAYOUT.staged(sender.begun["next"].staging, 4).keys[0] == -1).all()


def test_layers_go_by_their_number_not_by_their_order() -> None:
    layers = [written_cpu_packed(drawn(2) + 100 * i, [0], BLOCK, 1) for i in range(2)]
    mixed = dict(reversed(caches(*layers).items()))
    sender = FakeSender()
    Worker(read_all(mixed), sender).run(StepWork((extraction("r", 2, 0),)))
    staged = LAYOUT.staged(sender.begun["r"].staging, 2)
    assert torch.equal(staged.keys[1], drawn(2)[:, 0] + 100)


def make_worker(sender: FakeSender, *, sync: bool = False) -> Worker:
    layers = (torch.zeros(4, 2, BLOCK, 6) for _ in range(2))
    return Worker(read_all(caches(*layers)), sender, sync=sync)


def test_with_sync_the_step_waits_for_the_hand_over() -> None:
    sender = FakeSender()
    make_worker(sender, sync=True).run(StepWork((extraction("r", 2, 0),)))
    assert sender.begun["r"].did == ["send", "wait"]


def test_one_that_cannot_be_begun_leaves_the_others_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = FakeSender(refuses=frozenset({"r"}))
    make_worker(sender).run(StepWork((extraction("r", 2, 0), extraction("s", 2, 1))))
    assert sender.begun["s"].did == ["send"]
    assert "request r is not handed over: no staging memory came free" in caplog.text


@dataclass
class BrokenSender(FakeSender):
    def withdraw(self, withdrawal: Withdrawal) -> None:
        raise RuntimeError("a bug")

    def begin(self, extraction: Extraction) -> FakeHandOver:
        if extraction.request_id == "r":
            raise RuntimeError("another bug")
        return super().begin(extraction)


def test_a_bug_of_the_sender_takes_nothing_else_down(caplog: pytest.LogCaptureFixture) -> None:
    sender = BrokenSender()
    make_worker(sender).run(
        StepWork(
            (extraction("r", 2, 0), extraction("s", 2, 1)), (Withdrawal("q", NODE, "aborted"),)
        )
    )
    assert sender.begun["s"].did == ["send"]
    assert "request q is not handed over" in caplog.text
    assert "request r is not handed over" in caplog.text


def test_pd_14_one_that_cannot_be_read_is_aborted_and_never_sent() -> None:
    sender = FakeSender()
    make_worker(sender).run(StepWork((extraction("r", 2, 99), extraction("s", 2, 1))))
    assert sender.begun["r"].did == [
        "abort: prefill could not read the KV cache: blocks 99 to 99 are asked for; the cache has 4"
    ]
    assert sender.begun["s"].did == ["send"]


def test_withdrawals_reach_the_sender() -> None:
    sender = FakeSender()
    gone = Withdrawal("r", NODE, "aborted")
    make_worker(sender).run(StepWork(withdrawals=(gone,)))
    assert sender.withdrawn == [gone]


@pytest.mark.parametrize(
    ("names", "dtype", "said"),
    [
        (["layers.0.a"], "float32", r"has layers \[0\]; 0 to 1 are needed"),
        (["layers.0.a", "layers.2.a"], "float32", r"has layers \[0, 2\]"),
        (["layers.0.a", "layers.0.b"], "float32", r"'layers.0.b' .* no number of its own"),
        (["layers.0.a", "head"], "float32", r"'head' .* no number of its own"),
        (["layers.0.a", "layers.1.a"], "float16", r"holds float16, the layout float32; .*--dtype"),
        (["layers.0.a", "layers.1.a"], "uint8", r"holds uint8, the layout float32"),
    ],
)
def test_kv_06_caches_of_another_model_are_refused(names: list[str], dtype: str, said: str) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    layers = {name: torch.zeros(4, 2, BLOCK, 6, dtype=kind) for name in names}
    with pytest.raises(ConfigError, match=said):
        read_all(layers)


def test_kv_06_keys_stored_for_amx_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    layout = replace(LAYOUT, dtype="bfloat16")
    layers = (torch.zeros(4, 2, BLOCK, 6, dtype=torch.bfloat16) for _ in range(2))
    with pytest.raises(ConfigError, match=r"bfloat16 keys for AMX .* --dtype float32"):
        read_all(caches(*layers), layout)
    make_worker(FakeSender())


def test_kv_06_a_cpu_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(ConfigError, match=r"runs on aarch64; .* known for x86_64 only"):
        make_worker(FakeSender())


@pytest.mark.parametrize(
    ("heads", "size", "places"),
    [
        (8, 1, [Place(0, 1, sends=True)]),
        (4, 2, [Place(0, 2, sends=True), Place(1, 2, sends=True)]),
        (1, 2, [Place(0, 1, sends=True), Place(0, 1, sends=False)]),
        (
            2,
            4,
            [
                Place(0, 2, sends=True),
                Place(0, 2, sends=False),
                Place(1, 2, sends=True),
                Place(1, 2, sends=False),
            ],
        ),
    ],
)
def test_ranks_share_out_the_heads(heads: int, size: int, places: list[Place]) -> None:
    assert [Place.of(heads, rank, size) for rank in range(size)] == places


@pytest.mark.parametrize(("heads", "size"), [(4, 3), (3, 4), (2, 3)])
def test_heads_that_cannot_be_shared_out_are_refused(heads: int, size: int) -> None:
    with pytest.raises(ConfigError, match=rf"size is {size}, which does not share out {heads} "):
        Place.of(heads, 0, size)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_cache_on_a_device_is_staged_in_pinned_memory() -> None:
    cache = written_cuda_packed(drawn(5), [3, 0, 2], BLOCK, 4).cuda()
    staging = memoryview(bytearray(LAYOUT.staging_bytes(5)))
    sender = FakeSender(memory=staging)
    worker = Worker(read_all(caches(cache, cache + 1000)), sender)
    sender.begun["r"] = FakeHandOver(staging)
    worker.run(StepWork((extraction("r", 5, 3, 0, 2),)))
    staged = LAYOUT.staged(staging, 5)
    assert staged.keys.is_pinned()
    assert torch.equal(staged.keys[1], drawn(5)[:, 0] + 1000)
    assert torch.equal(staged.values[0], drawn(5)[:, 1])
