"""A whole app on the scripted engine: every part real but the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_engine.scripted import Script, ScriptedDecode, ScriptedPrefill
from tilert_stream.asgi import App
from tilert_stream.model.byte_tokenizer import EOS, byte_tokenizer
from tilert_stream.model.card import ModelCard
from tilert_stream.model.chat_template import ChatTemplate
from tilert_stream.nodes.local import local_service

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tilert_stream.telemetry.telemetry import Telemetry
    from tilert_stream.time_limits import TimeLimits
    from tilert_stream.trace import Trace

__all__ = ("ScriptedApp",)

CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


class ScriptedApp(App):
    """Answers with its script's tokens; by default the prompt's bytes again and again.

    :param script: tokens, times, hooks and faults.
    :param name: the model's.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        name: str = "echo",
        slots: int = 4,
        max_seq_len: int = 4096,
        queue_timeout: float = 30,
        max_queue: int = 256,
        api_keys: Iterable[str] = (),
        max_body_bytes: int = 1 << 20,
        done_after_error: bool = False,
        trace: Trace | None = None,
        time_limits: TimeLimits | None = None,
        cors_origins: Sequence[str] = (),
        telemetry: Telemetry | None = None,
    ) -> None:
        script = Script() if script is None else script
        self.prefill_engine = ScriptedPrefill(script, max_seq_len=max_seq_len)
        self.decode_engine = ScriptedDecode(script, slots=slots, max_seq_len=max_seq_len)
        tokenizer = byte_tokenizer()
        card = ModelCard(
            names=(name,),
            tokenizer=tokenizer,
            max_seq_len=max_seq_len,
            vocab_size=tokenizer.vocab_size,
            created=1_700_000_000,
            chat_template=ChatTemplate(CHAT_TEMPLATE),
            eos_ids=frozenset({EOS}),
        )
        service = local_service(
            self.prefill_engine,
            self.decode_engine,
            tokenizer,
            queue_timeout=queue_timeout,
            max_queue=max_queue,
            trace=trace,
            time_limits=time_limits,
        )
        super().__init__(
            service,
            card,
            api_keys=api_keys,
            max_body_bytes=max_body_bytes,
            done_after_error=done_after_error,
            cors_origins=cors_origins,
            telemetry=telemetry,
        )
