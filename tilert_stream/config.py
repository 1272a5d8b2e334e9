"""What the server is told: options in (command line, environment, TOML file, code), one object out.

Each field of ``ServeConfig`` is one option. Its ``Option`` says how it is shown and which values it
takes; the command line, the environment and the file are all read by these descriptions alone, so
that an option is the same wherever it is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path  # noqa: TC003 - option types are read at run time
from typing import Annotated, Literal, TypeAlias, get_args, get_type_hints

from .errors import ConfigError

__all__ = ("Option", "ServeConfig", "StagePlacement")

Where: TypeAlias = Literal["after", "before", "replace"]


@dataclass(frozen=True, slots=True)
class Option:
    """How an option is shown, and which values it takes."""

    group: str
    """The panel of ``--help`` that it stands in."""
    help: str
    default: str | None = None
    """The default in words, where the field's own value does not say it."""
    least: float | None = None
    most: float | None = None
    singular: str | None = None
    """The option's name, where it can be given several times."""
    secret: bool = False
    """The value is never printed."""

    def range(self) -> str:
        """The values it takes, in words; empty where every value of its type will do."""
        if self.least is not None and self.most is not None:
            return f" from {self.least:g} to {self.most:g}"
        if self.least is not None:
            return f" of {self.least:g} or more"
        return ""

    def admits(self, value: object) -> bool:
        """Whether ``value``, of the field's type, is in the range. NaN never is."""
        if not isinstance(value, int | float):
            return True
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )


@dataclass(frozen=True, slots=True)
class StagePlacement:
    """A stage of the operator's own, and where it goes in the pipeline."""

    use: str
    """A registered name or ``"module:attr"``."""
    where: Where
    anchor: str
    """The name of the stage that it is placed after, before, or instead of."""

    @classmethod
    def parse(cls, text: str) -> StagePlacement:
        """Read ``module:attr@after=detokenize``.

        :raises ValueError: it has another form.
        """
        use, _, place = text.rpartition("@")
        where, _, anchor = place.partition("=")
        for known in get_args(Where):
            if use and anchor and where == known:
                return cls(use, known, anchor)
        raise ValueError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Everything in one process: what ``python -m tilert_stream.serve`` is told.

    :raises ~tilert_stream.errors.ConfigError: a value is out of its range.
    """

    host: Annotated[
        str, Option("Listen", "Name or address to listen on; '::' takes IPv6 and IPv4.")
    ] = "127.0.0.1"
    port: Annotated[
        int, Option("Listen", "Port to listen on; 0 takes any free one.", least=0, most=65535)
    ] = 8000
    uds: Annotated[
        str | None,
        Option("Listen", "Path of a Unix socket to listen on, in place of host and port."),
    ] = None
    workers: Annotated[
        int,
        Option(
            "Listen",
            "Processes that share the port; more than 1 only for a role without an engine.",
            least=1,
            most=1024,
        ),
    ] = 1
    ssl_certfile: Annotated[
        Path | None,
        Option("Listen", "PEM file of a certificate and its chain: TLS only.", default="no TLS"),
    ] = None
    ssl_keyfile: Annotated[
        Path | None,
        Option(
            "Listen",
            "PEM file of its key, without a passphrase.",
            default="in the certificate's file",
        ),
    ] = None
    backend: Annotated[
        Literal["asyncio", "trio"], Option("Listen", "Which event loop runs the server.")
    ] = "asyncio"
    uvloop: Annotated[
        bool,
        Option(
            "Listen",
            "Whether uvloop, where it is installed, runs the asyncio backend.",
            default="it does",
        ),
    ] = True

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

    engine: Annotated[
        Literal["torch", "scripted"],
        Option("Engine", "What computes tokens; 'scripted' answers without a model, for tests."),
    ] = "torch"
    slots: Annotated[int, Option("Engine", "Requests decoded at once.", least=1, most=4096)] = 4
    max_seq_len: Annotated[
        int | None,
        Option(
            "Engine",
            "Tokens of prompt and answer together.",
            default="the model's, at most 4096",
            least=2,
        ),
    ] = None
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

    queue_timeout: Annotated[
        float,
        Option("Limits", "Seconds that a request waits for a slot before it gets 429.", least=0),
    ] = 30.0
    max_queue: Annotated[
        int, Option("Limits", "Requests that wait for a slot; one more gets 429 at once.", least=0)
    ] = 256
    prefill_timeout: Annotated[
        float, Option("Limits", "Seconds that computing the prompt may take.", least=0.001)
    ] = 300.0
    kv_timeout: Annotated[
        float,
        Option("Limits", "Seconds that the KV cache may take to its decode slot.", least=0.001),
    ] = 120.0
    first_token_timeout: Annotated[
        float,
        Option("Limits", "Seconds from the slot to the first token, at most.", least=0.001),
    ] = 600.0
    inter_token_timeout: Annotated[
        float, Option("Limits", "Seconds from one token to the next, at most.", least=0.001)
    ] = 120.0
    total_timeout: Annotated[
        float,
        Option(
            "Limits",
            "Seconds that a whole answer may take, the wait for a slot included.",
            default="no limit",
            least=0.001,
        ),
    ] = inf
    max_body_bytes: Annotated[
        int, Option("Limits", "Bytes of a request body; more gets 413.", least=1)
    ] = 32 * 1024 * 1024
    max_header_bytes: Annotated[
        int, Option("Limits", "Bytes of a request line and headers; more gets 431.", least=1)
    ] = 64 * 1024
    max_connections: Annotated[
        int | None,
        Option(
            "Limits",
            "Open connections; further ones wait in the kernel until one closes.",
            default="no limit",
            least=1,
        ),
    ] = None
    drain_delay: Annotated[
        float,
        Option(
            "Limits",
            "Seconds after SIGTERM in which /ready says no and all are served as before.",
            least=0,
        ),
    ] = 0.0
    drain_timeout: Annotated[
        float,
        Option("Limits", "Seconds that answers in flight are given to end, then.", least=0),
    ] = 30.0

    api_keys: Annotated[
        tuple[str, ...],
        Option(
            "HTTP",
            "Key that clients must send. Other users of the machine can read a command line:"
            " prefer the environment or a file.",
            default="nobody needs one",
            singular="api_key",
            secret=True,
        ),
    ] = field(default=(), repr=False)
    api_key_file: Annotated[
        Path | None, Option("HTTP", "File of further keys, one a line; # begins a comment line.")
    ] = None
    keep_alive_timeout: Annotated[
        float,
        Option("HTTP", "Seconds that a connection without a request stays open.", least=0),
    ] = 75.0
    header_timeout: Annotated[
        float,
        Option("HTTP", "Seconds that the headers of a request, once begun, may take.", least=0),
    ] = 10.0
    body_timeout: Annotated[
        float,
        Option("HTTP", "Seconds that a request's body may pause.", least=0),
    ] = 30.0
    write_stall_timeout: Annotated[
        float,
        Option("HTTP", "Seconds after which a client that takes nothing is dropped.", least=0),
    ] = 30.0
    allow_half_close: Annotated[
        bool,
        Option("HTTP", "Answer a client that has closed its sending side; else it has gone."),
    ] = False
    coalesce_ms: Annotated[
        float,
        Option("HTTP", "Milliseconds to wait for more tokens before each write.", least=0),
    ] = 0.0
    done_after_error: Annotated[
        bool,
        Option("HTTP", "End a failed stream with [DONE] in place of cutting the connection."),
    ] = False

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Option("Log", "Least level that is logged.")
    ] = "info"
    access_log: Annotated[
        bool,
        Option("Log", "Whether each request is logged, one line each.", default="it is"),
    ] = True

    stages: Annotated[
        tuple[StagePlacement, ...],
        Option(
            "Pipeline",
            "Stage of your own, as module:attr@after=detokenize (also @before=, @replace=).",
            default="none",
            singular="stage",
        ),
    ] = ()
    print_pipeline: Annotated[bool, Option("Pipeline", "Print the pipeline and exit.")] = False

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for name in (each.name for each in fields(self)):
            option: Option = hints[name].__metadata__[0]
            value: object = getattr(self, name)
            if not option.admits(value):
                raise ConfigError(
                    f"{name} is {value}; it must be a number{option.range()}.", param=name
                )
