"""Every named error of PhaseServe, on one page.

    PhaseServeError
    ├── InvalidRequest      400  the request is wrong; `param` names the field
    ├── Unauthorized        401  API keys are wanted, and the request brings none that is known
    ├── UnknownModel        404
    ├── UnknownRequest      404
    ├── UnknownReplica      404
    ├── Forbidden           403  an operator's endpoint, and the caller did not show to be one
    ├── RequestTimeout      408  the body did not arrive in time
    ├── Conflict            409  the fleet cannot do this as it is now; the message says why
    ├── RequestTooLarge     413
    ├── UnsupportedEncoding 415  the body is compressed
    ├── Overloaded          429  carries `retry_after_s`
    ├── Cancelled           499  the client left or asked to stop
    ├── EngineFailure       500  the model step raised
    ├── Unavailable         503  no replica can take the request now; carries `retry_after_s`
    ├── HandoffFailed       503  the KV of the request did not arrive whole; carries `retry_after_s`
    ├── DeadlineExceeded    504  a wait reached its bound
    ├── ModelError           --  a model file is missing, truncated or unsupported; names the file and the reason
    ├── ConfigError          --  a setting is unknown or wrong; names the setting
    ├── ProtocolError        --  a peer sent something that this version does not speak
    └── InvalidTransition    --  our own bug: a request was asked to make an illegal step

Errors that cross a process boundary travel as `ErrorInfo` values and come back as the same class.
"""

from __future__ import annotations

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An error as a value: what the OpenAI error object and the wire messages carry."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class PhaseServeError(Exception):
    """Base of all named errors. `status` is the HTTP status that a client sees."""

    status = 500
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def info(self) -> ErrorInfo:
        """This error as a value."""
        return ErrorInfo(
            status=self.status,
            code=self.code,
            message=self.message,
            param=self.param,
            retry_after_s=self.retry_after_s,
        )


class InvalidRequest(PhaseServeError):
    """The request is wrong and would be wrong anywhere."""

    status = 400
    code = "invalid_request"


class UnknownModel(PhaseServeError):
    """The model is not served here."""

    status = 404
    code = "model_not_found"


class UnknownRequest(PhaseServeError):
    """No request of this id is under way."""

    status = 404
    code = "request_not_found"


class UnknownReplica(PhaseServeError):
    """No replica of this name is joined."""

    status = 404
    code = "replica_not_found"


class Unauthorized(PhaseServeError):
    """API keys are wanted, and the request brings none that is known."""

    status = 401
    code = "invalid_api_key"


class Forbidden(PhaseServeError):
    """Only an operator may do this, and the caller did not show to be one."""

    status = 403
    code = "forbidden"


class Conflict(PhaseServeError):
    """The fleet cannot do this as it is now. The message says why."""

    status = 409
    code = "conflict"


class RequestTimeout(PhaseServeError):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


class RequestTooLarge(PhaseServeError):
    """The body is over the limit."""

    status = 413
    code = "request_too_large"


class UnsupportedEncoding(PhaseServeError):
    """The body is in a content encoding that is not read."""

    status = 415
    code = "unsupported_encoding"


class Overloaded(PhaseServeError):
    """A bounded queue is full; try again after `retry_after_s`."""

    status = 429
    code = "overloaded"


class Cancelled(PhaseServeError):
    """The client left or asked to stop."""

    status = 499
    code = "cancelled"


class EngineFailure(PhaseServeError):
    """The model step raised."""

    status = 500
    code = "engine_failure"


class Unavailable(PhaseServeError):
    """No replica can take the request now."""

    status = 503
    code = "unavailable"


class HandoffFailed(PhaseServeError):
    """The KV of a request did not get from one replica to another whole and in time."""

    status = 503
    code = "kv_handoff_failed"


class DeadlineExceeded(PhaseServeError):
    """A wait reached its bound."""

    status = 504
    code = "deadline_exceeded"


class ModelError(PhaseServeError):
    """A model file is missing, truncated or unsupported. The message names the file and the reason."""

    code = "model_error"


class ConfigError(PhaseServeError):
    """A setting is unknown or has a wrong value. `param` names it."""

    code = "config_error"


class ProtocolError(PhaseServeError):
    """A peer sent something that this version does not speak."""

    code = "protocol_error"


class InvalidTransition(PhaseServeError):
    """Our own bug: a request was asked to make a step its status does not allow. The message tells its history."""

    code = "invalid_transition"


_BY_CODE: dict[str, type[PhaseServeError]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        UnknownModel,
        RequestTooLarge,
        Overloaded,
        Cancelled,
        EngineFailure,
        Unavailable,
        HandoffFailed,
        DeadlineExceeded,
    )
}


def error_from(info: ErrorInfo) -> PhaseServeError:
    """The exception that `info` stands for; unknown codes become the base class with the given status."""
    kind = _BY_CODE.get(info.code, PhaseServeError)
    error = kind(info.message, param=info.param, retry_after_s=info.retry_after_s)
    error.status = info.status
    return error
