"""Publishes wait during an alarm, from the first one on, and everything else is served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amqpstore_server.clients.alarm_state import AlarmState
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.methods import Method
from tests.conformance.wire_client import publish
from tests.fuzz.simulated import SimulatedClient, SimulatedServer


class Alarm(AlarmState):
    """An alarm that is raised and cleared by the test."""

    is_blocking = False
    reason = "low on disk"


class Case:
    """A server with an alarm, and a client with three channels and the queue q."""

    def __init__(self, server: SimulatedServer) -> None:
        self.server = server
        self.alarm = server.alarms = Alarm()
        self.client = self.connect()
        self.ask(1, methods.QueueDeclare(queue="q"))

    def connect(self) -> SimulatedClient:
        return SimulatedClient.opened(self.server, channels=3)

    def ask(self, channel: int, *asked: Method) -> list[str]:
        """Send methods, and return the names of the answers."""
        return [answer.method.name for answer in self.client.ask(channel, *asked)]

    def publish(self, channel: int, *bodies: bytes) -> None:
        self.client.send(b"".join(publish(channel, "q", body) for body in bodies))

    def clear(self) -> None:
        """Clear the alarm."""
        self.alarm.is_blocking = False
        self.client.connection.unblock()
        self.server.settle()

    def is_paused(self) -> bool:
        return self.client.connection.is_input_paused

    def is_blocked(self) -> bool:
        return self.client.connection.is_blocked

    @property
    def ready(self) -> list[str]:
        return self.server.ready("q")


@pytest.fixture
def case() -> Iterator[Case]:
    with SimulatedServer() as server:
        yield Case(server)


def test_the_first_publish_waits_whoever_has_never_published(case: Case) -> None:
    case.alarm.is_blocking = True
    case.publish(1, b"1")
    assert case.is_blocked()
    assert case.ready == []
    case.clear()
    assert case.ready == ["1"]
    assert case.client.connection.channels


def test_who_has_published_before_is_not_blocked_until_it_publishes_again(case: Case) -> None:
    case.publish(1, b"1")
    case.alarm.is_blocking = True
    assert case.ask(1, methods.QueueDeclare(queue="r")) == ["queue.declare-ok"]
    assert not case.is_blocked()


@pytest.mark.parametrize("channel", [1, 2])
def test_a_blocked_client_drains_its_queue(case: Case, channel: int) -> None:
    """A client may do so on the channel on which it published, too."""
    case.publish(1, b"1", b"2", b"3")
    case.alarm.is_blocking = True
    case.publish(1, b"held")
    assert case.ask(channel, methods.BasicQos(prefetch_size=0, prefetch_count=1)) == [
        "basic.qos-ok"
    ]
    told = case.ask(channel, methods.BasicConsume(queue="q", consumer_tag="t"))
    assert told == ["basic.consume-ok", "basic.deliver"]
    assert case.ask(channel, methods.BasicAck(delivery_tag=1)) == ["basic.deliver"]
    assert case.ask(channel, methods.BasicCancel(consumer_tag="t")) == ["basic.cancel-ok"]
    assert case.ask(channel, methods.BasicNack(delivery_tag=2, requeue=False)) == []
    assert case.ask(channel, methods.BasicGet(queue="q")) == ["basic.get-ok"]
    assert case.ask(channel, methods.QueueDeclare(queue="r")) == ["queue.declare-ok"]
    assert case.ready == []
    case.clear()
    assert case.ready == ["held"]


def test_what_was_held_is_confirmed_in_its_order(case: Case) -> None:
    case.ask(1, methods.ConfirmSelect())
    case.alarm.is_blocking = True
    case.publish(1, b"1")
    case.publish(1, b"2", b"3")
    before = len(case.client.answers)
    case.clear()
    case.publish(1, b"4")
    assert case.ready == ["1", "2", "3", "4"]
    confirmed = [answer.method for answer in case.client.answers[before:]]
    assert [one.delivery_tag for one in confirmed if isinstance(one, methods.BasicAck)][-1] == 4


@pytest.mark.parametrize(
    "ends",
    [
        methods.ChannelClose(
            reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0
        ),
        methods.QueuePurge(queue="q"),
        methods.QueueDelete(queue="other"),
        methods.ConfirmSelect(),
    ],
)
def test_what_follows_from_publishes_waits_for_them(case: Case, ends: Method) -> None:
    """Methods behind the waiting one wait as well, but not those of other channels."""
    case.alarm.is_blocking = True
    case.publish(1, b"1")
    assert case.ask(1, ends) == []
    assert case.ask(1, methods.QueueDeclare(queue="r")) == []
    assert case.ask(2, methods.QueueDeclare(queue="s")) == ["queue.declare-ok"]
    before = len(case.client.answers)
    case.clear()
    assert case.client.answers[before].method.name.startswith(ends.name)
    assert case.ready == ([] if isinstance(ends, methods.QueuePurge) else ["1"])


def test_a_transaction_waits_as_a_whole(case: Case) -> None:
    case.ask(1, methods.TxSelect())
    case.alarm.is_blocking = True
    case.publish(1, b"1")
    assert case.ask(1, methods.TxCommit()) == []
    before = len(case.client.answers)
    case.clear()
    assert [one.method.name for one in case.client.answers[before:]] == ["tx.commit-ok"]
    assert case.ready == ["1"]


def test_a_client_that_closes_its_connection_has_published(case: Case) -> None:
    case.alarm.is_blocking = True
    case.publish(1, b"1")
    closing = methods.ConnectionClose(
        reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0
    )
    assert case.ask(0, closing) == []
    before = len(case.client.answers)
    case.clear()
    told = [one.method.name for one in case.client.answers[before:]]
    assert told == ["connection.close-ok"]
    assert case.ready == ["1"]


def test_an_error_on_the_channel_drops_what_it_held_and_nothing_else(case: Case) -> None:
    case.alarm.is_blocking = True
    case.publish(1, b"1")
    case.publish(2, b"2")
    assert case.ask(1, methods.BasicAck(delivery_tag=7)) == ["channel.close"]
    assert case.ask(1, methods.ChannelCloseOk()) == []
    assert case.ask(1, methods.ChannelOpen()) == ["channel.open-ok"]
    case.clear()
    assert case.ready == ["2"]


def test_no_more_is_held_than_little(case: Case) -> None:
    """A client with consumers may hold more: each of its acks may be behind a publish."""
    case.alarm.is_blocking = True
    case.publish(1, bytes(10_000))
    assert not case.is_paused()
    case.publish(1, bytes(10_000))
    assert case.is_paused()
    case.clear()
    assert not case.is_paused()
    case.alarm.is_blocking = True
    case.ask(2, methods.BasicConsume(queue="q", consumer_tag="t"))
    case.publish(1, bytes(50_000), bytes(50_000))
    assert not case.is_paused()
    for _ in range(4):
        case.publish(1, bytes(50_000))
    assert case.is_paused()


def test_who_is_in_the_middle_of_a_large_body_is_blocked(case: Case) -> None:
    case.alarm.is_blocking = True
    whole = publish(1, "q", bytes(90_000))
    case.client.send(whole[:50_000])
    assert case.is_blocked()
    assert case.is_paused()
    case.clear()
    case.client.send(whole[50_000:])
    assert len(case.ready) == 1


def test_what_is_held_is_gone_with_its_connection(case: Case) -> None:
    case.alarm.is_blocking = True
    case.publish(1, b"1")
    case.client.lose()
    case.client.connection.unblock()
    assert case.client.connection.unfinished_bytes == 0
    assert case.ready == []
