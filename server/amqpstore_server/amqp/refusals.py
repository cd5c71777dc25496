"""Converts errors of the broker and the store to AMQP reply codes and close methods, in one
place.
"""

from __future__ import annotations

from amqpstore import DiskFullError, NoMemoryError
from amqpstore_server.broker import errors as broker
from amqpstore_server.protocol import errors as amqp
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.events import Acks, Event, Failed, Publishes, ReceivedMethod

# There is one table: each error of the broker has one reply code, whichever method met it.
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


def refusal(raised: amqp.AmqpError | broker.BrokerError | DiskFullError) -> amqp.AmqpError:
    """Return the AMQP exception for an error of the broker or the store."""
    return raised if isinstance(raised, amqp.AmqpError) else _REPLIES[type(raised)](str(raised))


def refusal_of(
    event: Event,
    raised: amqp.AmqpError | broker.BrokerError | DiskFullError,
) -> amqp.AmqpError:
    """Return the AMQP exception for an error, with the class and method ids of the method that
    failed.
    """
    error = refusal(raised)
    match event:
        case Failed():
            return error
        case Acks():
            return error.at(methods.BasicAck.class_id, methods.BasicAck.method_id)
        case Publishes():
            return error.at(methods.BasicPublish.class_id, methods.BasicPublish.method_id)
        case ReceivedMethod():
            return error.at(event.method.class_id, event.method.method_id)


def channel_close(error: amqp.AmqpError) -> methods.ChannelClose:
    """Return the channel.close for an error."""
    return methods.ChannelClose(
        reply_code=error.reply_code,
        reply_text=error.reply_text,
        failing_class_id=error.class_id,
        failing_method_id=error.method_id,
    )


def connection_close(error: amqp.AmqpError) -> methods.ConnectionClose:
    """Return the connection.close for an error."""
    return methods.ConnectionClose(
        reply_code=error.reply_code,
        reply_text=error.reply_text,
        failing_class_id=error.class_id,
        failing_method_id=error.method_id,
    )
