"""Trains ``tiny-glm5``: two Debian packages' texts in; weights, tokenizer and loss curve out.

::

    apt-get download wordnet-base dict-jargon; for deb in *.deb; do dpkg -x $deb texts; done
    PYTHONPATH=engine python -m training.train_tiny_glm5 --texts texts --out tiny_glm5 --seconds 480

``--seconds`` is what the training itself may take: the speed of the machine is measured first, and
the number of steps follows from it (``config.json`` records it; ``--steps`` repeats it elsewhere).
Half of the steps see windows of 512 tokens densely, while the indexer learns which tokens matter;
then attention is restricted to those; the last steps do so over windows of 2,048 tokens. Same seed,
steps and machine: same order of data and same initial weights.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] -- its paths are

from .corpus import documents
from .tiny_network import Network, Shape, initial
from .tiny_tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, train_tokenizer

_SEED: Final = 5
_PEAK: Final = 3e-3
_WARM_UP: Final = 200
_STAGES: Final = ((0.5, 512, 64, False), (0.35, 512, 64, True), (0.15, 2048, 12, True))
"""Share of the steps, tokens of a window, windows of a batch, whether attention is sparse."""
_HELD_OUT: Final = 0.01
_ENDS: Final = ("<|endoftext|>", "<|user|>", "<|observation|>")
"""Documents end with the first; a chat's answers with the others too."""


def main() -> None:
    """Train, and write what the package ships."""
    parser = argparse.ArgumentParser(description="Trains tiny-glm5.")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    share = given.texts / "usr/share"
    texts = documents(share / "wordnet", share / "dictd/jargon.dict.dz", _SEED)
    shape = Shape()
    tokenizer = train_tokenizer(texts[::4], shape.vocab_size)
    tokenizer.save(str(out / "tokenizer.json"))
    device = torch.device(given.device)
    end, *others = (SPECIAL_TOKENS.index(text) for text in _ENDS)
    encoded = [[*item.ids, end] for item in tokenizer.encode_batch(texts)]
    _say(f"{len(texts)} documents, {sum(map(len, encoded))} tokens")
    kept = int(len(encoded) * (1 - _HELD_OUT))
    data = _Windows(encoded[:kept], device)
    held_out = _Windows(encoded[kept:], device)
    trainer = _Trainer(shape, data, held_out, device)
    steps = given.steps or trainer.affordable(given.seconds)
    trainer = _Trainer(shape, data, held_out, device)
    curve = trainer.train(steps)
    weights = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in trainer.network.parameters.items()
    }
    save_file(weights, out / "model.safetensors")
    config = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        **asdict(shape),
        "eos_token_id": [end, *others],
    }
    config["training"] = {"seed": _SEED, "steps": steps}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": CHAT_TEMPLATE, "eos_token": "<|endoftext|>"}, indent=1) + "\n"
    )
    (out / "generation_config.json").write_text('{"temperature": 0.3, "top_p": 0.9}\n')
    (out / "loss.json").write_text(json.dumps(curve) + "\n")


class _Windows:
    """Windows of a stream of documents, each beginning where a document does."""

    def __init__(self, encoded: list[list[int]], device: torch.device) -> None:
        stream = [token for document in encoded for token in document]
        starts: list[int] = []
        at = 0
        for document in encoded:
            starts.append(at)
            at += len(document)
        longest = max(tokens for _, tokens, _, _ in _STAGES) + 3
        starts = [start for start in starts if start + longest <= len(stream)]
        self._stream = torch.tensor(stream, device=device)
        self._starts = torch.tensor(starts, device=device)

    def batch(self, windows: int, tokens: int, chance: torch.Generator) -> torch.Tensor:
        picked = torch.randint(len(self._starts), (windows,), generator=chance)
        starts = self._starts[picked.to(self._starts.device)]
        offsets = torch.arange(tokens + 3, device=starts.device)
        return self._stream[starts[:, None] + offsets]


class _Trainer:
    def __init__(
        self, shape: Shape, data: _Windows, held_out: _Windows, device: torch.device
    ) -> None:
        self.network = Network(shape, initial(shape, device=device, seed=_SEED))
        self._data, self._held_out, self._device = data, held_out, device
        self._chance = torch.Generator().manual_seed(_SEED)
        parameters = self.network.parameters
        decayed = [value for value in parameters.values() if value.dim() == 2]
        free = [value for value in parameters.values() if value.dim() != 2]
        self._optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.05}, {"params": free, "weight_decay": 0.0}],
            betas=(0.9, 0.95),
            fused=True,
        )

    def affordable(self, seconds: float) -> int:
        """Steps that fit into ``seconds``, of the stages' mixture."""
        cost = 0.0
        for share, tokens, windows, sparse in _STAGES:
            for count in (3, 10):
                begun = time.perf_counter()
                for _ in range(count):
                    self._step(tokens, windows, 0.0, sparse=sparse)
                self._wait()
                each = (time.perf_counter() - begun) / count
            _say(f"{tokens} tokens, sparse {sparse}: {each * 1e3:.1f} ms a step")
            cost += share * each
        return max(10, int(seconds / cost))

    def train(self, steps: int) -> dict[str, list[float]]:
        """The loss curve: one entry for every hundredth step."""
        names = ("step", "main", "draft1", "draft2", "indexer", "accept1", "accept2", "held_out")
        curve: dict[str, list[float]] = {name: [] for name in names}
        done, begun = 0, time.perf_counter()
        for share, tokens, windows, sparse in _STAGES:
            last = done + round(share * steps)
            while done < min(last, steps):
                pace = min(1.0, (done + 1) / _WARM_UP)
                fall = 0.5 * (1 + math.cos(math.pi * done / steps))
                row = self._step(
                    tokens, windows, _PEAK * pace * (0.01 + 0.99 * fall), sparse=sparse
                )
                done += 1
                if done % max(1, steps // 100) == 0:
                    values = [float(done), *map(float, row), self._evaluate(sparse=sparse)]
                    for name, value in zip(names, values, strict=True):
                        curve[name].append(round(value, 4))
                    _say(
                        f"{time.perf_counter() - begun:6.1f} s "
                        + " ".join(f"{n} {v:.3f}" for n, v in zip(names, values, strict=True))
                    )
        return curve

    def _step(self, tokens: int, windows: int, rate: float, *, sparse: bool) -> torch.Tensor:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        ids = self._data.batch(windows, tokens, self._chance)
        with torch.autocast(self._device.type, torch.bfloat16):
            out = self.network.losses(ids, sparse=sparse)
        loss = out.main + 0.3 * out.draft[0] + 0.2 * out.draft[1] + out.indexer
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call] # pyright: ignore[reportUnknownMemberType] -- untyped in torch
        torch.nn.utils.clip_grad_norm_(self.network.parameters.values(), 1.0)
        self._optimizer.step()  # pyright: ignore[reportUnknownMemberType] -- untyped in torch
        return torch.stack((out.main, *out.draft, out.indexer, *out.agreement)).detach()

    @torch.no_grad()
    def _evaluate(self, *, sparse: bool) -> float:
        ids = self._held_out.batch(32, 512, torch.Generator().manual_seed(1))
        with torch.autocast(self._device.type, torch.bfloat16):
            return float(self.network.losses(ids, sparse=sparse).main)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
