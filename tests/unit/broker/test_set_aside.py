"""A queue whose work fails is set aside: no other queue is affected, and nothing is lost."""

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from amqpstore_server.amqp.refusals import refusal
from amqpstore_server.broker.errors import SetAsideError
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.exchanges.direct import DirectExchange
from amqpstore_server.broker.exchanges.fanout import FanoutExchange
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.spec import ReplyCode
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client


class BrokenExchange(FanoutExchange):
    """A package's type that fails at everything that it is asked."""

    type = "x-broken"

    def route(self, routing_key: str, properties: BasicProperties) -> Iterable[Queue | Exchange]:
        raise LookupError(routing_key)

    def _remove(self, binding: Any) -> None:
        raise LookupError(binding)


@pytest.fixture
def simulated() -> SimulatedBroker:
    """A broker with a queue "fails", whose dead letters go where an error comes out."""
    simulated = SimulatedBroker({BrokenExchange.type: BrokenExchange})
    simulated.exchange("broken", BrokenExchange.type)
    simulated.queue("fails", dead_letter_exchange="broken")
    simulated.queue("sound")
    return simulated


def repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the type route from now on."""
    monkeypatch.setattr(BrokenExchange, "route", FanoutExchange.route)
    monkeypatch.setattr(BrokenExchange, "_remove", FanoutExchange._remove)


def is_served(simulated: SimulatedBroker, name: str = "fails") -> bool:
    return ("/", name) not in simulated.broker.set_aside


def fail(simulated: SimulatedBroker) -> Client:
    """Have a message in it rejected, and return the client that rejected it."""
    client = Client(simulated)
    client.publish("", "fails", "a", delivery_mode=2)
    simulated.settle()
    assert client.get("fails") == "a"
    client.reject("a")
    simulated.settle()
    return client


def test_what_expires(simulated: SimulatedBroker, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(simulated)
    client.publish("", "fails", "a", delivery_mode=2, expiration="100")
    client.publish("", "sound", "b", delivery_mode=2)
    with caplog.at_level(logging.ERROR):
        simulated.pass_time(200)
    assert not is_served(simulated)
    assert client.get("sound") == "b"
    (record,) = caplog.records
    assert (record.__dict__["vhost"], record.__dict__["queue"]) == ("/", "fails")
    assert record.exc_info is not None


def test_what_is_rejected(simulated: SimulatedBroker) -> None:
    fail(simulated)
    assert not is_served(simulated)


def test_what_a_limit_drops(simulated: SimulatedBroker) -> None:
    simulated.queue("short", dead_letter_exchange="broken", max_length=1)
    client = Client(simulated)
    client.publish("", "short", "a", delivery_mode=2)
    client.publish("", "short", "b", delivery_mode=2)
    simulated.settle()
    assert not is_served(simulated, "short")


def test_what_was_delivered_too_often(simulated: SimulatedBroker) -> None:
    simulated.queue("limited", dead_letter_exchange="broken", delivery_limit=0)
    client = Client(simulated)
    client.publish("", "limited", "a", delivery_mode=2)
    simulated.settle()
    assert client.get("limited") == "a"
    client.requeue("a")
    simulated.settle()
    assert not is_served(simulated, "limited")


def test_what_waited_for_its_delay(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.exchange("later", "x-delayed-message", x_delayed_type="direct")
    simulated.bind("later", "sound", "k")
    client = Client(simulated)
    client.publish("later", "k", "a", delivery_mode=2, headers={"x-delay": 100})
    with monkeypatch.context() as broken:
        broken.setattr(DirectExchange, "route", BrokenExchange.route)
        simulated.pass_time(200)
    assert not is_served(simulated, "amq.delayed.later")
    simulated.restart()
    simulated.settle()
    assert simulated.ready("sound") == ["a"]


def test_what_a_consumer_is_given(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(simulated)
    client.publish("", "sound", "a", delivery_mode=2)
    simulated.settle()
    client.consume("sound", "c")

    def fail(*_: Any) -> None:
        raise OSError(5, "read")

    monkeypatch.setattr(simulated.store, "take", fail)
    simulated.settle()
    assert not is_served(simulated, "sound")
    assert "c" not in client.channel.consumers


def test_it_stays_in_the_queue_and_is_served_after_a_restart(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = fail(simulated)
    client.channel.close()
    repair(monkeypatch)
    simulated.restart()
    simulated.settle()
    assert is_served(simulated)
    assert simulated.ready("fails") == ["a"]


def test_clients_are_told(simulated: SimulatedBroker) -> None:
    fail(simulated)
    why = r"queue 'fails' in vhost '/' has failed .* see the broker's log \(LookupError: fails\)"
    with pytest.raises(SetAsideError, match=why) as raised:
        simulated.vhost.queue("fails")
    assert refusal(raised.value).reply_code == ReplyCode.PRECONDITION_FAILED
    with pytest.raises(SetAsideError):
        simulated.queue("fails", dead_letter_exchange="broken")


def test_publishes_are_refused(simulated: SimulatedBroker) -> None:
    fail(simulated)
    client = Client(simulated)
    client.channel.select_confirms()
    client.publish("", "fails", "b", delivery_mode=2)
    simulated.settle()
    assert client.told == ["refused 1"]


def test_dead_letters_of_other_queues_are_taken_in(simulated: SimulatedBroker) -> None:
    fail(simulated)
    simulated.queue("other", dead_letter_exchange="", dead_letter_routing_key="fails")
    client = Client(simulated)
    client.publish("", "other", "b", delivery_mode=2)
    simulated.settle()
    assert client.get("other") == "b"
    client.reject("b")
    simulated.settle()
    assert simulated.vhost.queues["fails"].ready_count == 2


def test_it_can_be_deleted_and_declared_again(simulated: SimulatedBroker) -> None:
    fail(simulated)
    simulated.vhost.delete_queue(simulated.vhost.queues["fails"])
    simulated.queue("fails")
    client = Client(simulated)
    client.publish("", "fails", "b")
    assert client.get("fails") == "b"


def test_what_is_unacked_can_be_acked(simulated: SimulatedBroker) -> None:
    client = Client(simulated)
    client.publish("", "fails", "a", "b", delivery_mode=2)
    simulated.settle()
    assert client.get("fails") == "a"
    assert client.get("fails") == "b"
    client.reject("a")
    client.ack("b")
    simulated.settle()
    simulated.restart()
    assert simulated.vhost.queues["fails"].ready_count == 1


def test_one_that_fails_at_start_keeps_no_other_from_being_served(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(simulated)
    client.publish("", "fails", "a", delivery_mode=2, expiration="100")
    client.publish("", "sound", "b", delivery_mode=2)
    simulated.store.sync()
    simulated.clock.advance(200)
    simulated.restart()
    simulated.settle()
    assert simulated.broker.set_aside == [("/", "fails")]
    assert simulated.ready("sound") == ["b"]
    repair(monkeypatch)
    simulated.queue("dead")
    simulated.bind("broken", "dead")
    simulated.restart()
    simulated.settle()
    assert simulated.ready("dead") == ["a"]


def test_a_queue_whose_settings_cannot_be_applied_is_set_aside(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.queue("bytes", max_length_bytes=1000)

    def fail(*_: Any) -> int:
        raise OSError(5, "read")

    monkeypatch.setattr("amqpstore.queues.run_sizes.RunSizes.ready_bytes", fail)
    simulated.restart()
    assert simulated.broker.set_aside == [("/", "bytes")]


def test_a_queue_is_deleted_though_an_exchange_type_fails_to_forget_it(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.bind("broken", "sound")
    simulated.vhost.delete_queue(simulated.vhost.queues["sound"])
    assert simulated.vhost.exchanges["broken"].bindings == []
    monkeypatch.setattr(BrokenExchange, "route", FanoutExchange.route)
    client = Client(simulated)
    client.publish("broken", "", "a")
    simulated.settle()


def test_a_definition_that_its_type_fails_on_is_left_out(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.bind("broken", "sound")

    def fail(*_: Any) -> None:
        raise LookupError

    with monkeypatch.context() as broken:
        broken.setattr(BrokenExchange, "_add", fail)
        simulated.restart()
        assert simulated.vhost.exchanges["broken"].bindings == []
    simulated.restart()
    assert len(simulated.vhost.exchanges["broken"].bindings) == 1


def test_the_exclusive_queues_of_a_connection_go_though_one_cannot(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = object()
    for name in ("one", "two"):
        simulated.vhost.declare_queue(
            name, durable=False, exclusive=True, auto_delete=False, arguments={}, connection=owner
        )
    closed = Queue.closed

    def fail(queue: Queue) -> None:
        if queue.name == "one":
            simulated.vhost.queues["one"] = queue
            raise LookupError
        closed(queue)

    monkeypatch.setattr(Queue, "closed", fail)
    simulated.vhost.owned_queues.end(owner)
    assert set(simulated.vhost.queues) & {"one", "two"} == {"one"}
