"""The wall clock is set while the broker runs: only what is due at a date goes by it."""

import pytest

from amqpstore_server.broker.channels.branches import XaStatus
from amqpstore_server.broker.errors import NotFoundError
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.branches import BranchClient
from tests.unit.broker.simulated import Client
from tests.unit.broker.test_waiting import Getter

HOUR_MS = 3_600_000


def set_clock(simulated: SimulatedBroker, ms: int) -> None:
    """Set the wall clock forwards, or back, and let the broker see it."""
    simulated.clock.set_wall(simulated.clock.wall_ms() + ms)
    simulated.settle()


@pytest.mark.parametrize("ms", [-HOUR_MS, HOUR_MS])
def test_a_queue_that_is_not_used_expires_after_its_time(
    simulated: SimulatedBroker, ms: int
) -> None:
    simulated.queue("q", expires=5000)
    simulated.pass_time(1000)
    set_clock(simulated, ms)
    simulated.pass_time(3999)
    assert "q" in simulated.vhost.queues
    simulated.pass_time(1)
    with pytest.raises(NotFoundError):
        simulated.vhost.queue("q")


@pytest.mark.parametrize("ms", [-HOUR_MS, HOUR_MS])
def test_a_get_waits_as_long_as_it_asked_for(simulated: SimulatedBroker, ms: int) -> None:
    simulated.queue("q")
    getter = Getter(simulated)
    getter.ask("q", 500)
    set_clock(simulated, ms)
    simulated.pass_time(499)
    assert getter.answers == []
    simulated.pass_time(1)
    assert getter.answers == [None]


@pytest.mark.parametrize("ms", [-HOUR_MS, HOUR_MS])
def test_a_branch_times_out_after_its_time(simulated: SimulatedBroker, ms: int) -> None:
    client = BranchClient(simulated)
    client.start()
    client.set_timeout(5)
    set_clock(simulated, ms)
    simulated.pass_time(4999)
    assert client.end() == XaStatus.OK
    simulated.pass_time(1)
    client.prepare()
    assert client.statuses == [XaStatus.RB_TIMEOUT]


def test_what_the_disk_had_no_room_for_is_tried_again_after_a_second(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("dead")
    simulated.queue("q", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="dead")
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    simulated.fill_disk()
    simulated.clock.advance(10)
    simulated.services.run_timers()
    set_clock(simulated, -5)  # the message expired by a clock that was ahead
    simulated.free_disk()
    simulated.pass_time(1000)
    assert simulated.ready("dead") == ["a"]


def test_messages_expire_at_the_date_that_they_were_given(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=10_000)
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    set_clock(simulated, -HOUR_MS)
    simulated.pass_time(10_000)
    assert simulated.ready("q") == ["a"]
    set_clock(simulated, HOUR_MS)
    assert simulated.ready("q") == []
