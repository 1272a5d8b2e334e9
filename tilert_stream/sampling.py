"""How the next token is drawn, and what an engine must be capable of for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from .slot_init import slot_init

__all__ = ("PLAIN_CAPABILITIES", "Capability", "Sampling")

Capability: TypeAlias = Literal[
    "frequency_penalty",
    "grammar",
    "logit_bias",
    "logprobs",
    "min_p",
    "presence_penalty",
    "prompt_logprobs",
    "repetition_penalty",
    "seed",
    "tools",
]
"""What not every engine can do, by the request field that asks for it. ``grammar``: its tokens are
masked, for ``response_format`` and a forced ``tool_choice``. ``tools``: calls are read out of the
answer, which takes a parser and a chat template, and nothing of the engine."""

PLAIN_CAPABILITIES: Final[frozenset[Capability]] = frozenset({"min_p", "seed"})
"""Those of an engine that declares none."""


@slot_init
@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. The defaults are vLLM's; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    """Taken off the logit of each token that the answer has."""
    frequency_penalty: float = 0.0
    """Taken off it as often as the answer has it."""
    repetition_penalty: float = 1.0
    """Divides the positive, and multiplies the negative logit of each token that the answer or the
    prompt has."""
    prompt_tokens: frozenset[int] = frozenset()
    """The prompt's ids, each once; only where ``repetition_penalty`` needs them."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Ids, and what is added to their logits before the penalties."""
    logprobs: int | None = None
    """How many of the most likely tokens are told beside the drawn one's log-probability; None:
    no log-probability at all. They are those of the model, before anything above."""
    prompt_logprobs: int | None = None
    """The same of each token of the prompt, which prefill tells."""
    grammar: str | None = None
    """What the answer must match, as ``llguidance`` writes grammars in JSON."""
    grammar_param: str = "response_format"
    """The request's field that ``grammar`` is made from, such as ``structured_outputs.json``:
    whoever cannot follow it names it."""

    @property
    def adjusts(self) -> bool:
        """Whether penalties or a bias change the logits."""
        return bool(
            self.logit_bias
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
        )

    def needs(self) -> list[Capability]:
        """What an engine must be capable of for this, in alphabetical order."""
        used: dict[Capability, bool] = {
            "frequency_penalty": self.frequency_penalty != 0,
            "grammar": self.grammar is not None,
            "logit_bias": bool(self.logit_bias),
            "logprobs": self.logprobs is not None,
            "min_p": self.min_p > 0,
            "presence_penalty": self.presence_penalty != 0,
            "prompt_logprobs": self.prompt_logprobs is not None,
            "repetition_penalty": self.repetition_penalty != 1,
            # Greedily nothing is drawn.
            "seed": self.seed is not None and self.temperature > 0,
        }
        return [name for name, asked in used.items() if asked]
