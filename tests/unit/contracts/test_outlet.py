"""Tests that every implementation of `Outlet` passes, whatever is at its other end.

What a client hears is put into the same words for all: what AMQP's channel says is read back from
the bytes that leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from amqpstore import Message, Run
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.outlet import CLOSED, Outlet, Returned
from amqpstore_server.broker.messages.envelope import ParsedEnvelope, parse_envelope
from amqpstore_server.broker.queues.consumer import Consumer, ConsumerOptions
from amqpstore_server.clients.outbox import WRITABLE_BYTES
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import BasicProperties, encode_properties
from amqpstore_server.protocol.spec import ReplyCode
from tests.crash import broker_world as crash
from tests.fuzz.simulated import Answer, SimulatedClient, SimulatedServer
from tests.property import broker_world as model
from tests.recording_outlet import (
    Back,
    Cancelled,
    Committed,
    Confirmed,
    Delivered,
    Late,
    RecordingOutlet,
    Refused,
    Told,
)
from tests.unit.broker.simulated import Client

PUBLISHED = 20
"""How many publishes wait for their answers."""

Heard = tuple[Any, ...]


class Subject(Protocol):
    """An outlet, whose client has two consumers, has published, and waits for a commit."""

    outlet: Outlet
    consumers: tuple[Consumer, Consumer]

    def heard(self) -> list[Heard]:
        """Return what the client has heard since the last call."""

    def fill(self) -> None:
        """Fill the outlet, so that it is not writable."""

    def make_room(self) -> None:
        """Make the outlet writable again, with everything sent that was to be."""

    def fail(self) -> None:
        """Have an answer fail, and see that the client does not go on waiting for it."""


# AMQP's channel.


class AmqpSubject:
    """AMQP's channel: what it says is read off its connection."""

    def __init__(self) -> None:
        server = SimulatedServer()
        self.client = SimulatedClient.opened(server, channels=1)
        for tag in ("one", "two"):
            server.queue(tag)
            self.client.ask(1, methods.BasicConsume(queue=tag, consumer_tag=tag))
        one, two = (next(iter(server.vhost.queue(tag).consumers.active)) for tag in ("one", "two"))
        self.consumers = one, two
        assert isinstance(one.channel, Channel)
        self.outlet: Outlet = one.channel.outlet
        self.client.answers.clear()
        self._first_unanswered = 1

    def heard(self) -> list[Heard]:
        self.client.take_output()
        answers, self.client.answers = self.client.answers, []
        return [heard for answer in answers for heard in self._in_words(answer)]

    def _in_words(self, answer: Answer) -> list[Heard]:
        method = answer.method
        if isinstance(method, methods.BasicDeliver):
            tags = method.consumer_tag, method.delivery_tag
            return [("delivered", *tags, method.redelivered, *_content(answer, method))]
        if isinstance(method, methods.BasicReturn):
            reason = Returned[ReplyCode(method.reply_code).name]
            return [("returned", reason, *_content(answer, method))]
        if isinstance(method, methods.BasicAck):
            first = self._first_unanswered if method.multiple else method.delivery_tag
            self._first_unanswered = method.delivery_tag + 1
            return [("confirmed", tag) for tag in range(first, method.delivery_tag + 1)]
        if isinstance(method, methods.BasicNack):
            assert not method.multiple
            self._first_unanswered = method.delivery_tag + 1
            return [("refused", method.delivery_tag)]
        if isinstance(method, methods.TxCommitOk):
            return [("committed",)]
        if isinstance(method, methods.ChannelClose):
            assert method.reply_code == ReplyCode.PRECONDITION_FAILED
            return [("late", int(method.reply_text.partition(" ms.")[0].rpartition(" ")[2]))]
        assert isinstance(method, methods.BasicCancel)
        return [("cancelled", method.consumer_tag)]

    def fill(self) -> None:
        self.outlet.returned([message(b"x" * WRITABLE_BYTES)], Returned.NO_ROUTE)

    def make_room(self) -> None:
        self.client.take_output()

    def fail(self) -> None:
        self.outlet.failed()
        self.client.take_output()
        (close,) = (answer.method for answer in self.client.answers)
        assert isinstance(close, methods.ConnectionClose)
        assert close.reply_code == ReplyCode.INTERNAL_ERROR


def _content(answer: Answer, method: methods.BasicDeliver | methods.BasicReturn) -> Heard:
    assert answer.header is not None
    return method.exchange, method.routing_key, answer.header.properties, answer.body


# The doubles.


class RecordedSubject:
    """A double: it is writable as its test says, and an answer that fails, fails the test."""

    def __init__(self, outlet: RecordingOutlet, one: Consumer, two: Consumer) -> None:
        self.outlet: Outlet = outlet
        self.consumers = one, two
        self._recording = outlet
        outlet.record.clear()

    def heard(self) -> list[Heard]:
        record, self._recording.record = self._recording.record, []
        return [heard for told in record for heard in _in_words(told)]

    def fill(self) -> None:
        self._recording.is_writable = False

    def make_room(self) -> None:
        self._recording.is_writable = True

    def fail(self) -> None:
        with pytest.raises(AssertionError, match="failed"):
            self.outlet.failed()


def _in_words(told: Told) -> list[Heard]:
    match told:
        case Delivered(consumer_tag, tag, sent, redelivered):
            return [("delivered", consumer_tag, tag, redelivered, *heard_of(sent))]
        case Back(sent, reason):
            return [("returned", reason, *heard_of(sent))]
        case Confirmed(tags):
            return [("confirmed", tag) for tag in tags]
        case Refused(tag):
            return [("refused", tag)]
        case Committed():
            return [("committed",)]
        case Cancelled(consumer_tag):
            return [("cancelled", consumer_tag)]
        case Late(timeout_ms):
            return [("late", timeout_ms)]


def recording() -> Subject:
    broker = crash.World()
    outlet = RecordingOutlet()
    channel = Channel(broker.vhost, outlet, outlet)
    broker.queue("one")
    one, two = (
        channel.consume(broker.vhost.queue("one"), tag, ConsumerOptions()) for tag in ("one", "two")
    )
    return RecordedSubject(outlet, one, two)


def of_the_units() -> Subject:
    broker = crash.World()
    broker.queue("one")
    client = Client(broker)
    return RecordedSubject(client, client.consume("one", "one"), client.consume("one", "two"))


def of_the_model() -> Subject:
    world = model.World()
    world.open_channel(1, None)
    queue = world.queue("one")
    one, two = (world.channels[1].consume(queue, tag, ConsumerOptions()) for tag in ("one", "two"))
    return RecordedSubject(world.outlets[1], one, two)


def of_the_crashes() -> Subject:
    world = crash.World()
    world.queue("sent")
    client = world.client()
    for tag in ("one", "two"):
        client.channel.consume(world.queue(tag), tag, ConsumerOptions())
    client.channel.select_transactions()
    client.publish("", "sent", *(str(number) for number in range(PUBLISHED)))
    client.commit()
    one, two = client.channel.consumers.values()
    return RecordedSubject(client, one, two)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "AMQP's channel": AmqpSubject,
    "the recording one": recording,
    "of the unit tests": of_the_units,
    "of the model": of_the_model,
    "of the crash tests": of_the_crashes,
}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]()


@pytest.fixture
def outlet(subject: Subject) -> Outlet:
    return subject.outlet


PROPERTIES = BasicProperties(message_id="m", headers={"a": 1}, delivery_mode=2)


def envelope(exchange: str = "exchange", key: str = "key") -> ParsedEnvelope:
    return parse_envelope(exchange, key, encode_properties(PROPERTIES), PROPERTIES)


def message(body: bytes, key: str = "key") -> Message:
    return Message(envelope(key=key), body)


def heard_of(sent: Message) -> Heard:
    """A message as its client sees it."""
    its = sent.envelope
    return its.exchange, its.routing_key, its.properties, sent.body


def run_of(*messages: Message, delivery_count: int = 0) -> Run:
    return Run(1, len(messages), messages=list(messages), delivery_count=delivery_count)


def test_nothing_is_said_at_the_start(subject: Subject) -> None:
    assert subject.outlet.is_writable
    assert subject.heard() == []


def test_a_run_is_delivered_under_ascending_tags(subject: Subject) -> None:
    same = envelope()
    sent = [Message(same, b"a"), Message(same, b"longer"), Message(same, b"b"), message(b"c", "k")]
    subject.outlet.deliver(subject.consumers[0], 7, run_of(*sent))
    assert subject.heard() == [
        ("delivered", "one", tag, False, *heard_of(one)) for tag, one in enumerate(sent, 7)
    ]


@pytest.mark.parametrize("delivery_count", [1, 2])
def test_what_was_delivered_before_is_flagged(subject: Subject, delivery_count: int) -> None:
    run = run_of(message(b"a"), message(b"b"), delivery_count=delivery_count)
    subject.outlet.deliver(subject.consumers[0], 1, run)
    assert [heard[3] for heard in subject.heard()] == [True, True]


def test_each_consumer_has_what_is_sent_to_it(subject: Subject) -> None:
    one, two = subject.consumers
    tags = 0
    for consumer in (one, two, two, one):
        subject.outlet.deliver(consumer, tags + 1, run_of(message(b"a"), message(b"b")))
        tags += 2
    assert [heard[1:3] for heard in subject.heard()] == [
        (tag, number + 1) for number, tag in enumerate(("one", "one", *["two"] * 4, "one", "one"))
    ]


@pytest.mark.parametrize("size", [1, 131_063, 131_064, 131_065, 300_000])
def test_a_body_of_any_size(subject: Subject, size: int) -> None:
    """The largest frame that AMQP's client takes has 131,072 bytes, 8 of them its frame's."""
    sent = message(b"x" * size)
    subject.outlet.deliver(subject.consumers[0], 1, run_of(sent))
    subject.outlet.returned([sent], Returned.NO_ROUTE)
    delivered, returned = subject.heard()
    assert delivered[4:] == returned[2:] == heard_of(sent)


def test_what_is_delivered_stays_as_it_is(subject: Subject) -> None:
    """The channel has it among its unacked, and may deliver it again."""
    sent = [message(b"a"), message(b"b")]
    run = run_of(*sent, delivery_count=1)
    subject.outlet.deliver(subject.consumers[0], 1, run)
    subject.heard()
    assert run.messages == sent
    assert (run.first_sequence, run.count, run.delivery_count) == (1, 2, 1)


@pytest.mark.parametrize("reason", Returned)
def test_messages_come_back_with_the_reason(subject: Subject, reason: Returned) -> None:
    sent = [message(b"a"), message(b"b", "other")]
    subject.outlet.returned(sent, reason)
    assert subject.heard() == [("returned", reason, *heard_of(one)) for one in sent]


def test_publishes_are_confirmed_one_by_one(subject: Subject) -> None:
    for tag in (1, 2, 3):
        subject.outlet.confirm(tag, multiple=False)
    assert subject.heard() == [("confirmed", tag) for tag in (1, 2, 3)]


def test_multiple_confirms_all_that_were_not_answered(subject: Subject) -> None:
    subject.outlet.confirm(3, multiple=True)
    subject.outlet.confirm(4, multiple=False)
    subject.outlet.refuse(5)
    subject.outlet.confirm(9, multiple=True)
    assert subject.heard() == [
        *(("confirmed", tag) for tag in (1, 2, 3, 4)),
        ("refused", 5),
        *(("confirmed", tag) for tag in (6, 7, 8, 9)),
    ]


def test_multiple_may_mean_one_alone(subject: Subject) -> None:
    subject.outlet.confirm(1, multiple=True)
    subject.outlet.confirm(2, multiple=True)
    assert subject.heard() == [("confirmed", 1), ("confirmed", 2)]


def test_a_transaction_is_committed(subject: Subject) -> None:
    subject.outlet.committed()
    assert subject.heard() == [("committed",)]


def test_a_client_hears_of_its_consumer_s_end(subject: Subject) -> None:
    subject.outlet.consumer_cancelled("two")
    assert subject.heard() == [("cancelled", "two")]


def test_all_is_heard_in_the_order_of_the_calls(subject: Subject) -> None:
    outlet = subject.outlet
    outlet.confirm(1, multiple=False)
    outlet.deliver(subject.consumers[0], 1, run_of(message(b"a")))
    outlet.returned([message(b"b")], Returned.NO_ROUTE)
    outlet.refuse(2)
    outlet.deliver(subject.consumers[1], 2, run_of(message(b"c")))
    outlet.consumer_cancelled("two")
    outlet.committed()
    assert [heard[0] for heard in subject.heard()] == [
        "confirmed",
        "delivered",
        "returned",
        "refused",
        "delivered",
        "cancelled",
        "committed",
    ]


def test_what_is_not_writable_loses_nothing(subject: Subject) -> None:
    """Deliveries are asked to wait: those that come all the same are sent after the others."""
    subject.fill()
    writable = [subject.outlet.is_writable]
    subject.outlet.deliver(subject.consumers[0], 1, run_of(message(b"a")))
    subject.outlet.confirm(1, multiple=False)
    subject.make_room()
    writable.append(subject.outlet.is_writable)
    assert writable == [False, True]
    assert [heard[0] for heard in subject.heard()][-2:] == ["delivered", "confirmed"]


def test_nobody_waits_for_an_answer_that_failed(subject: Subject) -> None:
    subject.fail()


def test_a_client_is_told_that_its_ack_is_overdue(subject: Subject) -> None:
    subject.outlet.ack_timed_out(5000)
    assert subject.heard() == [("late", 5000)]


# Answers that come too late.

LATE: dict[str, Callable[[Outlet], None]] = {
    "confirm": lambda outlet: outlet.confirm(1, multiple=True),
    "refuse": lambda outlet: outlet.refuse(1),
    "committed": lambda outlet: outlet.committed(),
    "failed": lambda outlet: outlet.failed(),
}
"""Answers to what was asked for before the channel was closed."""


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("by", ["the client", "a fault"])
def test_a_closed_amqp_channel_says_nothing_more(late: str, by: str) -> None:
    subject = AmqpSubject()
    closing = (
        methods.ChannelClose(reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0)
        if by == "the client"
        else methods.BasicAck(delivery_tag=99)
    )
    (answer,) = subject.client.ask(1, closing)
    assert isinstance(answer.method, methods.ChannelCloseOk | methods.ChannelClose)
    subject.client.answers.clear()
    LATE[late](subject.outlet)
    assert subject.heard() == []


def test_the_outlet_of_a_closed_channel_takes_everything(subject: Subject) -> None:
    for call in LATE.values():
        call(CLOSED)
    CLOSED.deliver(subject.consumers[0], 1, run_of(message(b"a")))
    CLOSED.returned([message(b"a")], Returned.NO_ROUTE)
    CLOSED.consumer_cancelled("one")
    CLOSED.ack_timed_out(1000)
    assert not CLOSED.is_writable
    assert subject.heard() == []


# The doubles see what no client may be told.


@pytest.fixture
def double() -> RecordingOutlet:
    return RecordingOutlet()


@pytest.mark.parametrize(
    "twice", [lambda o: o.confirm(2, multiple=False), lambda o: o.confirm(1, multiple=True)]
)
def test_an_answer_twice_is_seen(
    double: RecordingOutlet, twice: Callable[[RecordingOutlet], None]
) -> None:
    double.refuse(2)
    double.confirm(1, multiple=False)
    with pytest.raises(AssertionError, match="answered twice"):
        twice(double)
    with pytest.raises(AssertionError, match="answered twice"):
        double.refuse(1)


def test_a_tag_twice_and_a_body_that_is_not_there_are_seen(double: RecordingOutlet) -> None:
    (consumer, _) = of_the_units().consumers
    double.deliver(consumer, 1, run_of(message(b"a"), message(b"b")))
    with pytest.raises(AssertionError, match="not a new one"):
        double.deliver(consumer, 2, run_of(message(b"c")))
    with pytest.raises(AssertionError, match="not in memory"):
        double.deliver(consumer, 3, Run(1, 1))
