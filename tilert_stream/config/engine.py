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
        Option(
            "Model",
            "A GGUF file, a Hugging Face directory, 'demo' for SmolLM2-135M, or 'tiny-glm5', which"
            " is shipped; with --engine tilert glm5 or dsv32.",
        ),
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
        Literal["torch", "tilert", "scripted"],
        Option(
            "Engine",
            "What computes tokens; 'tilert' decodes on TileRT, 'scripted' answers without a model,"
            " for tests.",
        ),
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
    with_mtp: Annotated[
        bool | None,
        Option(
            "Engine",
            "Decode with the model's draft layer, and hand its KV cache over.",
            default="where the model has one, unless TILERT_PD_NO_MTP is 1",
            negative="no-mtp",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str,
        Option(
            "Model",
            "Type of an MLA model's KV cache, as prefill has it: fp8_ds_mla (also fp8, fp8_e4m3) or"
            " bf16 (also bfloat16, auto). Other models have that of --dtype.",
        ),
    ] = "fp8_ds_mla"


@dataclass(frozen=True, kw_only=True)
class DecodeOptions(EngineOptions):
    """What decodes."""

    slots: Annotated[
        int | None,
        Option(
            "Engine",
            "Requests decoded at once.",
            default="4; 1 on TileRT, which takes no more",
            least=1,
            most=4096,
        ),
    ] = None
    ar_steps: Annotated[
        int | None,
        Option(
            "Engine",
            "Decode steps chained before their tokens are read back.",
            default="8 on a GPU (GLM5_AR_N on TileRT); 1 on a CPU, where a chain saves nothing",
            least=1,
            most=1024,
        ),
    ] = None
