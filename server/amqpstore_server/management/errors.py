"""Refusals: the errors of the broker as answers of HTTP, in the form of RabbitMQ's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from amqpstore import DiskFullError
from amqpstore.errors import PicklableError
from amqpstore_server.administration.changes import (
    AdministrationError,
    MissingError,
    ProtectedError,
)
from amqpstore_server.administration.definitions import DefinitionsError
from amqpstore_server.broker.errors import (
    AccessRefusedError,
    BrokerError,
    NotAllowedError,
    NotFoundError,
)
from amqpstore_server.protocol.errors import AccessRefused, AmqpError, NotFound

OBJECT_NOT_FOUND = "Object Not Found"
"""The error that RabbitMQ gives, always with the reason `Not Found`. Clients compare both, so that
what is missing stands beside them, as `detail`.
"""


class HttpError(PicklableError):
    """A request is answered with an error, `{"error": error, "reason": reason}`."""

    def __init__(
        self, status: int, error: str, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = dict(headers or {})


def bad_request(reason: str) -> HttpError:
    """Return the error for a request that cannot be carried out as it is."""
    return HttpError(400, "bad_request", reason)


@contextmanager
def validating() -> Iterator[None]:
    """Answer as RabbitMQ does if a policy or a parameter is refused. Raises: HttpError."""
    try:
        yield
    except MissingError:
        raise
    except (ValueError, AdministrationError) as error:
        raise bad_request(f"Validation failed\n\n{error}\n") from None


def not_found(reason: str = "Not Found") -> HttpError:
    """Return the error for what does not exist, or for this user does not."""
    return HttpError(404, OBJECT_NOT_FOUND, reason)


def not_authorised(reason: str) -> HttpError:
    """Return the error for a user who may not do this; 401, as in RabbitMQ."""
    return HttpError(401, "not_authorised", reason)


def http_error_of(error: Exception) -> HttpError | None:
    """Return the answer for an error of the broker; None if it is an internal one."""
    match error:
        case HttpError():
            return error
        case MissingError() | NotFoundError():
            return not_found(str(error))
        case NotFound():
            # Not of the path: of what a method of AMQP names.
            return HttpError(404, "not_found", error.detail)
        case AccessRefusedError() | NotAllowedError():
            return not_authorised(str(error))
        case AccessRefused():
            return not_authorised(error.detail)
        case AmqpError():
            return bad_request(error.detail)
        case ProtectedError():
            return HttpError(412, "precondition_failed", str(error))
        case BrokerError() | AdministrationError() | DefinitionsError():
            return bad_request(str(error))
        case DiskFullError():
            return HttpError(503, "service_unavailable", str(error))
    return None
