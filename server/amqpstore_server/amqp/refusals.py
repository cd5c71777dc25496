"""The one door where the broker's refusals become AMQP's reply codes."""

from __future__ import annotations

from amqpstore import DiskFullError, NoMemoryError
from amqpstore_server.broker import errors as broker
from amqpstore_server.protocol import errors as amqp

_REPLIES: dict[type[Exception], type[amqp.AmqpError]] = {
    DiskFullError: amqp.ResourceError,
    NoMemoryError: amqp.ResourceError,
    broker.NotFoundError: amqp.NotFound,
    broker.SetAsideError: amqp.PreconditionFailed,
    broker.AccessRefusedError: amqp.AccessRefused,
    broker.ResourceLockedError: amqp.ResourceLocked,
    broker.PreconditionFailedError: amqp.PreconditionFailed,
    broker.NotAllowedError: amqp.NotAllowed,
    broker.ResourceExhaustedError: amqp.ResourceError,
    broker.UnknownTypeError: amqp.CommandInvalid,
}


def refusal(error: broker.BrokerError | DiskFullError) -> amqp.AmqpError:
    """The AMQP exception that says what the broker's says, or the store's."""
    return _REPLIES[type(error)](str(error))
