"""Writes ``smollm2_greedy.json``: what transformers answers, greedily, for SmolLM2-135M-Instruct.

Run it in an environment of its own, once a model or a prompt changes:

    pip install torch transformers accelerate gguf
    python tests/data/make_smollm2_greedy.py SmolLM2-135M-Instruct.Q4_1.gguf

Each answer is cut before the first token whose lead over the runner-up is not above 1e-3 (logits):
there two correct float32 implementations may differ.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

# Not a dependency of the tests: known when it runs.
transformers: Any = import_module("transformers")

LEAD = 1e-3
TOKENS = 24
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    CHAT.format("What is the capital of France?"),
    CHAT.format("Count from 1 to 12 in digits, separated by commas."),
    "def fibonacci(n):\n    ",
    "Die Übersetzung von „Straße“ ist 'street'. 日本語のテキスト 🌶 2024年  costs $1,234.56\n\n\tSo",
    "Once upon a time, ",
    "The quick brown fox jumps over the lazy dog. " * 40 + "In summary,",
]


def main(path: Path) -> None:
    options: dict[str, str] = {"gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, **options
    ).eval()
    cases = [answer(model, tokenizer, prompt) for prompt in PROMPTS]
    data = {
        "command": f"python tests/data/{Path(__file__).name} {path.name}",
        "transformers": transformers.__version__,
        "cases": cases,
    }
    target = Path(__file__).with_name("smollm2_greedy.json")
    target.write_text(json.dumps(data, ensure_ascii=False) + "\n", encoding="utf-8")


@torch.inference_mode()
def answer(model: Any, tokenizer: Any, prompt: str) -> dict[str, object]:
    prompt_ids: list[int] = tokenizer(prompt, add_special_tokens=True)["input_ids"]
    ids: list[int] = []
    leads: list[float] = []
    fed = torch.tensor([prompt_ids])
    past: Any = None
    while len(ids) < TOKENS:
        out = model(fed, past_key_values=past, use_cache=True)
        past = out.past_key_values
        (first, second), (best, _) = (x.tolist() for x in out.logits[0, -1].topk(2))
        if first - second <= LEAD:
            break
        ids.append(best)
        leads.append(round(first - second, 4))
        if best == model.config.eos_token_id:
            break
        fed = torch.tensor([[best]])
    return {"prompt": prompt, "prompt_ids": prompt_ids, "ids": ids, "leads": leads}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
