"""The served model: what the configuration names, loaded; its engines are made when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from tilert_stream.errors import ConfigError

from .front import LONGEST, TINY, byte_front, locate, model_front

if TYPE_CHECKING:
    from pathlib import Path

    from tilert_engine.layouts.abc import KVLayout
    from tilert_engine.torch import TorchDecode, TorchPrefill
    from tilert_stream.abc import DecodeEngine, PrefillEngine
    from tilert_stream.config.engine import EngineOptions

    from .front import Front

__all__ = ("Model", "load_model")

_SLOTS: Final = 4
"""Of an engine that can have several, where nothing else is asked for."""


class Model(Protocol):
    """Two engines that share nothing but the KV cache handed over, and what clients see of them.

    Each engine is made once, when it is first asked for: a decode engine takes its slots' memory.
    """

    @property
    def front(self) -> Front:
        """Tokenizer and card."""
        ...

    @property
    def prefill(self) -> PrefillEngine[Any]:
        """Computes prompts."""
        ...

    @property
    def decode(self) -> DecodeEngine[Any]:
        """Computes answers."""
        ...

    @property
    def layout(self) -> KVLayout:
        """How the one's KV cache travels to the other, where they are two processes."""
        ...


def load_model(
    config: EngineOptions,
    *,
    slots: int | None = None,
    ar_steps: int | None = None,
    senders: int = 1,
    weights: Path | None = None,
    prefills: bool = True,
) -> Model:
    """Load what ``config`` names; blocks for seconds, with TileRT for minutes.

    :param slots: of the decode engine; None: as many as it has by default.
    :param ar_steps: the decode engine's longest chain; None: what the device is best at.
    :param senders: ranks of prefill that a KV cache comes from.
    :param weights: folder of TileRT's weights.
    :param prefills: whether prompts are to be computed too.
    :raises ~tilert_stream.errors.ConfigError: it is not there, or not of a kind that can be served;
        the message has the command that brings it.
    """
    if config.engine == "tilert":
        from .tilert_model import ServedTileRT

        if prefills:
            raise ConfigError(
                "engine is 'tilert', which computes no prompts; give it to the decode role, with"
                " vLLM for prefill, or take --engine torch here",
                param="engine",
            )
        return ServedTileRT(config, weights, slots=slots, ar_steps=ar_steps, senders=senders)
    if config.engine == "torch" and config.model == TINY:
        from .glm_model import ServedGLM

        return ServedGLM(config, slots or _SLOTS, ar_steps, senders)
    kind = _Scripted if config.engine == "scripted" else _Torch
    return kind(config, slots or _SLOTS, ar_steps, senders)


class _Torch:
    def __init__(
        self, config: EngineOptions, slots: int, ar_steps: int | None, senders: int
    ) -> None:
        from tilert_engine.torch import build

        self._senders = senders
        self._built = build(
            locate(config.model),
            slots=slots,
            max_seq_len=config.max_seq_len,
            ar_steps=ar_steps,
            device=config.device,
            dtype=config.dtype,
            threads=config.threads,
        )
        self.front = model_front(self._built.checkpoint, config, self._built.max_seq_len)

    @property
    def prefill(self) -> TorchPrefill:
        return self._built.prefill

    @property
    def decode(self) -> TorchDecode:
        return self._built.decode

    @property
    def layout(self) -> KVLayout:
        from tilert_engine.layouts.gqa import GqaLayout

        checkpoint = self._built.checkpoint
        dtype = str(checkpoint.weights.dtype).removeprefix("torch.")
        return GqaLayout.of(
            checkpoint,
            dtype=dtype,
            max_seq_len=self._built.max_seq_len,
            senders=self._senders,
        )


class _Scripted:
    def __init__(
        self, config: EngineOptions, slots: int, ar_steps: int | None, senders: int
    ) -> None:
        from tilert_engine.layouts.scripted import ScriptedLayout
        from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill

        if senders != 1:
            raise ConfigError(
                f"senders is {senders}; the scripted engine takes KV caches from one rank",
                param="senders",
            )
        longest = config.max_seq_len or LONGEST
        steps = ar_steps or 1
        script = Script(chain=lambda _turn: steps)
        self.front = byte_front(config, longest)
        self.prefill = ScriptedPrefill(script, max_seq_len=longest)
        self.decode = ScriptedDecode(script, slots=slots, max_seq_len=longest)
        self.layout = ScriptedLayout(longest)
