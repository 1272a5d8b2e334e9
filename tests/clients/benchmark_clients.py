"""The benchmark clients: a load in, a command line out; the client's own report in, figures out."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

Endpoint: TypeAlias = Literal["chat", "completions"]

ENDPOINTS: tuple[Endpoint, ...] = ("chat", "completions")
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
PROMPT = 64
"""Tokens of a prompt, of the client's own count."""
ANSWER = 32
"""Tokens of an answer; around it where the client can spread them."""
SPREAD = 8


@dataclass(frozen=True)
class Load:
    """What is asked of a server."""

    url: str
    model: str
    tokenizer: Path
    """A folder in Hugging Face's form."""
    endpoint: Endpoint
    requests: int = 24
    concurrency: int = 4


@dataclass(frozen=True)
class Report:
    """What the client says that it got."""

    succeeded: int
    failed: int
    tokens: int
    """Of all answers."""


class BenchmarkClient(ABC):
    """One client. Its answers are streams of a length that is asked for."""

    name: ClassVar[str]

    @abstractmethod
    def command(self, python: Path, load: Load, folder: Path) -> list[str]:
        """Its command line, for the ``python`` of its environment; it reports into ``folder``."""

    @abstractmethod
    def report(self, load: Load, folder: Path) -> Report: ...


class Vllm(BenchmarkClient):
    name = "vllm"

    def command(self, python: Path, load: Load, folder: Path) -> list[str]:
        return [
            *(str(python.with_name("vllm")), "bench", "serve"),
            f"--backend={'openai-chat' if load.endpoint == 'chat' else 'openai'}",
            f"--endpoint={PATHS[load.endpoint]}",
            f"--base-url={load.url}",
            f"--model={load.model}",
            f"--tokenizer={load.tokenizer}",
            *("--dataset-name=random", f"--random-input-len={PROMPT}"),
            *(f"--random-output-len={ANSWER}", "--random-range-ratio=0.5", "--ignore-eos"),
            *(f"--num-prompts={load.requests}", f"--max-concurrency={load.concurrency}"),
            *("--save-result", f"--result-dir={folder}", "--result-filename=report.json"),
            # Its trial request is not in its report.
            "--ready-check-timeout-sec=0",
        ]

    def report(self, load: Load, folder: Path) -> Report:
        said = _json(folder / "report.json")
        return Report(said["completed"], said["failed"], said["total_output_tokens"])


class SGLang(BenchmarkClient):
    name = "sglang"

    def command(self, python: Path, load: Load, folder: Path) -> list[str]:
        return [
            *(str(python), str(Path(__file__).with_name("sglang_client.py"))),
            f"--backend={'sglang-oai-chat' if load.endpoint == 'chat' else 'sglang-oai'}",
            f"--base-url={load.url}",
            f"--model={load.model}",
            f"--tokenizer={load.tokenizer}",
            *("--dataset-name=random-ids", f"--random-input-len={PROMPT}"),
            *(f"--random-output-len={ANSWER}", "--random-range-ratio=0.5"),
            *(f"--num-prompts={load.requests}", f"--max-concurrency={load.concurrency}"),
            f"--output-file={folder / 'report.jsonl'}",
            *("--warmup-requests=0", "--disable-tqdm"),
            # Without it, it takes for granted that it got as many tokens as it asked for. Its
            # completions cannot take the usage chunk in: no other chunk is without choices.
            *(
                ['--extra-request-body={"stream_options": {"include_usage": true}}']
                if load.endpoint == "chat"
                else []
            ),
        ]

    def report(self, load: Load, folder: Path) -> Report:
        said = _json(folder / "report.jsonl")
        completed: int = said["completed"]
        return Report(completed, load.requests - completed, said["total_output_tokens"])


class GuideLLM(BenchmarkClient):
    name = "guidellm"

    def command(self, python: Path, load: Load, folder: Path) -> list[str]:
        return [
            *(str(python.with_name("guidellm")), "run"),
            f"--backend=kind=openai_http,target={load.url},model={load.model},"
            f"request_format={PATHS[load.endpoint]}",
            f"--tokenizer=kind=hf_auto,model={load.tokenizer}",
            f"--data=kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER},"
            f"output_tokens_stdev={SPREAD}",
            f"--profile=kind=concurrent,streams={load.concurrency}",
            f"--constraint=kind=max_requests,count={load.requests}",
            f"--output=kind=json,path={folder / 'report.json'}",
            "--disable-progress",
        ]

    def report(self, load: Load, folder: Path) -> Report:
        (benchmark,) = _json(folder / "report.json")["benchmarks"]
        requests = benchmark["metrics"]["request_totals"]
        tokens = benchmark["metrics"]["output_token_count"]["total"]["total_sum"]
        succeeded: int = requests["successful"]
        return Report(succeeded, requests["total"] - succeeded, round(tokens))


class AIPerf(BenchmarkClient):
    name = "aiperf"

    def command(self, python: Path, load: Load, folder: Path) -> list[str]:
        return [
            *(str(python.with_name("aiperf")), "profile"),
            f"--model={load.model}",
            f"--url={load.url}",
            *(f"--endpoint-type={load.endpoint}", "--streaming"),
            f"--tokenizer={load.tokenizer}",
            f"--synthetic-input-tokens-mean={PROMPT}",
            *(f"--output-tokens-mean={ANSWER}", f"--output-tokens-stddev={SPREAD}"),
            *("--extra-inputs=ignore_eos:true", "--use-server-token-count"),
            *(f"--concurrency={load.concurrency}", f"--request-count={load.requests}"),
            *("--ui=none", f"--artifact-dir={folder}"),
        ]

    def report(self, load: Load, folder: Path) -> Report:
        said = _json(folder / "profile_export_aiperf.json")
        failed = int(said.get("error_request_count", {"avg": 0})["avg"])
        succeeded = int(said["request_count"]["avg"])
        return Report(succeeded, failed, int(said["total_output_tokens"]["avg"]))


CLIENTS: tuple[BenchmarkClient, ...] = (Vllm(), SGLang(), GuideLLM(), AIPerf())


def _json(path: Path) -> Any:
    return json.loads(path.read_text())
