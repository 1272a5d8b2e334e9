"""Every way a request can fail, each with the answer a client gets.

An error carries its own HTTP status, OpenAI ``type`` and ``code``, the request field at fault
(``param``) and whether the same request may be sent again. The server maps an error without
knowing which room raised it.

The ``message`` is written for the client: it names the field, the value it got, the value it
needs and the fix. It never holds a key, a path or a traceback.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = (
    "AuthenticationFailed",
    "BodyTooLarge",
    "Busy",
    "Cancelled",
    "ConfigError",
    "ContextLengthExceeded",
    "EndpointNotServed",
    "EngineDied",
    "EngineFault",
    "FirstTokenTimeout",
    "InterTokenTimeout",
    "InvalidRequest",
    "KVTimeout",
    "LifecycleError",
    "MethodNotAllowed",
    "ModelNotFound",
    "NotFound",
    "NotReady",
    "PipelineError",
    "PrefillTimeout",
    "StageError",
    "StageLoadError",
    "StageNotFound",
    "TilertStreamError",
    "Timeout",
    "TotalTimeout",
    "UnsupportedMediaType",
    "UnsupportedParameter",
)


class TilertStreamError(Exception):
    """Base of every error of this library.

    :param message: one sentence for the client.
    :param param: the request field at fault, as the client spelled it; None where there is none.
    :param retry_after: seconds after which a new try is worth it; None where it is not.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


# --- the client's fault: nothing has been computed -------------------------------------------


class InvalidRequest(TilertStreamError):
    """A field has a wrong type or value, or the body is no JSON object."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class UnsupportedParameter(InvalidRequest):
    """A known field that this server cannot honour; ignoring it would falsify the answer."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or the prompt and the tokens asked for, do not fit the model's window."""

    code = "context_length_exceeded"


class AuthenticationFailed(TilertStreamError):
    """The API key is missing or wrong."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class NotFound(TilertStreamError):
    """No such path."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No served model has that name."""

    code = "model_not_found"


class MethodNotAllowed(TilertStreamError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class BodyTooLarge(TilertStreamError):
    """The body is over ``max_body_bytes``."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class UnsupportedMediaType(TilertStreamError):
    """The body is announced as something else than plain JSON."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class EndpointNotServed(TilertStreamError):
    """A path of the API that this server knows and does not serve."""

    status = 501
    type = "invalid_request_error"
    code = "not_implemented"


# --- load: the same request may be sent again ------------------------------------------------


class Busy(TilertStreamError):
    """No slot came free in time, or the queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "slots_busy"
    retryable = True


class NotReady(TilertStreamError):
    """The server is starting, draining, or its engine has gone."""

    status = 503
    code = "not_ready"
    retryable = True


# --- our side: computing has begun -----------------------------------------------------------


class EngineFault(TilertStreamError):
    """The engine failed this one request; its other sequences go on."""

    code = "engine_fault"


class EngineDied(TilertStreamError):
    """The engine can serve nobody any more (a device error): the process must end."""

    status = 503
    code = "engine_died"
    retryable = True


class Timeout(TilertStreamError):
    """One of the request's time limits has run out."""

    status = 504
    code = "timeout"
    retryable = True


class PrefillTimeout(Timeout):
    """The prefill node was called and has not answered."""

    code = "prefill_timeout"


class KVTimeout(Timeout):
    """The first token exists; the KV cache has not reached the decode slot."""

    code = "kv_timeout"


class FirstTokenTimeout(Timeout):
    """The request was accepted, and no token has come."""

    code = "first_token_timeout"


class InterTokenTimeout(Timeout):
    """Tokens have come, and no further one. Nothing but a token counts as a sign of life."""

    code = "inter_token_timeout"


class TotalTimeout(Timeout):
    """The whole answer takes longer than the operator allows."""

    code = "total_timeout"


class StageError(TilertStreamError):
    """A stage raised; the cause is chained and logged, the client reads the stage's name."""

    code = "stage_failed"


class Cancelled(TilertStreamError):
    """The client left, or the server is shutting down. Logged as 499, never sent."""

    status = 499
    code = "cancelled"


# --- programming and configuration: raised before a request exists ---------------------------


class ConfigError(TilertStreamError):
    """An option, an environment variable or a line of the TOML file is wrong."""

    code = "config_error"


class PipelineError(TilertStreamError):
    """Stages that cannot be linked in this order."""

    code = "pipeline_error"


class LifecycleError(TilertStreamError):
    """A request was moved to a state that its present one does not lead to."""

    code = "lifecycle_error"


class StageNotFound(PipelineError):
    """No stage of that name; the message lists the known ones."""

    code = "stage_not_found"


class StageLoadError(PipelineError):
    """The stage's module or entry point cannot be imported; the import error is chained."""

    code = "stage_load_error"
