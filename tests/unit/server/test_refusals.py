"""Refusals of the broker become reply codes, by one table."""

import pytest

from amqpstore import DiskFullError, NoMemoryError
from amqpstore_server.amqp.refusals import channel_close, connection_close, refusal, refusal_of
from amqpstore_server.broker.errors import BrokerError, NotFoundError
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.errors import AmqpError, MalformedError, ResourceError
from amqpstore_server.protocol.events import Acks, Event, Failed, Publishes, ReceivedMethod


def kinds(of: type[BrokerError]) -> set[type[BrokerError]]:
    """All subclasses, of subclasses too."""
    return {kind for one in of.__subclasses__() for kind in {one} | kinds(one)}


@pytest.mark.parametrize("kind", sorted(kinds(BrokerError), key=str))
def test_every_refusal_of_the_broker_has_a_reply_code(kind: type[BrokerError]) -> None:
    error = refusal(kind("no queue 'x'"))
    assert isinstance(error, AmqpError)
    assert error.reply_text == f"{error.reply_code.name} - no queue 'x'"


def test_what_is_full_is_a_resource_error() -> None:
    for error in (DiskFullError("d", 0, 1), NoMemoryError("d", "full")):
        assert isinstance(refusal(error), ResourceError)


@pytest.mark.parametrize(
    ("event", "ids"),
    [
        (Acks(1, 1, 2), (60, 80)),
        (Publishes(1), (60, 40)),
        (ReceivedMethod(1, methods.TxCommit()), (90, 20)),
        (Failed(1, MalformedError("no method")), (0, 0)),
    ],
)
def test_a_close_names_the_method_at_fault(event: Event, ids: tuple[int, int]) -> None:
    error = refusal_of(event, NotFoundError("no queue 'x'"))
    for close in (channel_close(error), connection_close(error)):
        assert (close.reply_code, close.reply_text) == (404, "NOT_FOUND - no queue 'x'")
        assert (close.failing_class_id, close.failing_method_id) == ids
