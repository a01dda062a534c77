"""One class for each way in which a call can fail, from the status that the server gives."""

from __future__ import annotations

import grpc


class PacelineError(Exception):
    """A call failed. `code` is the gRPC status; the message is the server's own words."""

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code


class InvalidRequestError(PacelineError, ValueError):
    """The request itself is wrong; the message names the field."""


class UnauthorizedError(PacelineError):
    """The server asks for another key."""


class ForbiddenError(PacelineError):
    """The server was not started for such calls."""


class UnknownModelError(PacelineError):
    """The server does not serve this model."""


class OverloadedError(PacelineError):
    """The queue is full: try again later."""


class UnavailableError(PacelineError):
    """No server, no ready worker, or a worker was lost; nothing is wrong with the request."""


class CancelledError(PacelineError):
    """The caller left, or its time was over."""


class ServerError(PacelineError):
    """A fault of the server."""


_CLASSES: dict[grpc.StatusCode, type[PacelineError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthorizedError,
    grpc.StatusCode.PERMISSION_DENIED: ForbiddenError,
    grpc.StatusCode.NOT_FOUND: UnknownModelError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.DEADLINE_EXCEEDED: CancelledError,
}


def error_of(error: grpc.RpcError) -> PacelineError:
    """The error that a failed call stands for."""
    code, details = error.code(), error.details()
    return _CLASSES.get(code, ServerError)(details or code.name, code)
