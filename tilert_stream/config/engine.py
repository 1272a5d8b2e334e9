"""Options of a model, and of the roles that compute with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from .option import Option, Options

__all__ = ("DecodeOptions", "EngineOptions", "ModelOptions", "WindowOptions")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """What is served, and under which name."""

    model: Annotated[
        str,
        Option("Model", "A GGUF file, a Hugging Face directory, or 'demo' for SmolLM2-135M."),
    ] = "demo"
    served_model_names: Annotated[
        tuple[str, ...],
        Option(
            "Model",
            "Name that clients ask for; the first is the one that answers bear.",
            default="the model's own name",
            singular="served_model_name",
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class WindowOptions(ModelOptions):
    """How long prompt and answer may be."""

    max_seq_len: Annotated[
        int | None,
        Option(
            "Model",
            "Tokens of prompt and answer together.",
            default="the model's, at most 4096",
            least=2,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EngineOptions(WindowOptions):
    """What computes."""

    engine: Annotated[
        Literal["torch", "scripted"],
        Option("Engine", "What computes tokens; 'scripted' answers without a model, for tests."),
    ] = "torch"
    threads: Annotated[
        int | None, Option("Engine", "CPU threads of the engine.", default="torch's own", least=1)
    ] = None
    device: Annotated[
        str, Option("Engine", "Torch device: cpu, cuda, cuda:1; auto is CUDA where there is one.")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Option("Engine", "Type of weights and KV cache; auto is bfloat16 on CUDA, else float32."),
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class DecodeOptions(EngineOptions):
    """What decodes."""

    slots: Annotated[int, Option("Engine", "Requests decoded at once.", least=1, most=4096)] = 4
    ar_steps: Annotated[
        int | None,
        Option(
            "Engine",
            "Decode steps chained before their tokens are read back.",
            default="8 on a GPU; 1 on a CPU, where a chain saves nothing",
            least=1,
            most=1024,
        ),
    ] = None
