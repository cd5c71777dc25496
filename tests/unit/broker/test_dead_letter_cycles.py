"""Some cycles of dead letters are cut, others go on; chains have any length (H09 to H12)."""

from typing import Any

import pytest

from amqpstore_server.broker.exchanges.replay import REPLAY_EXCHANGE
from amqpstore_server.broker.messages import envelope
from amqpstore_server.broker.messages.cycles import LANDMARK
from amqpstore_server.broker.work.limits import BrokerLimits
from amqpstore_server.protocol.content import decode_properties
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.dead_letters import DEAD, deaths, die, reject, with_dead_queue
from tests.unit.broker.simulated import Client


@pytest.fixture
def simulated() -> SimulatedBroker:
    return with_dead_queue()


# Cycles.


def test_a_cycle_without_a_rejection_is_cut(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="r")
    simulated.queue("r", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="q")
    Client(simulated).publish("", "q", "a")
    simulated.pass_time(10)
    assert simulated.ready("r") == ["a"]
    simulated.pass_time(10)
    assert simulated.ready("q") == simulated.ready("r") == []


@pytest.mark.parametrize("arguments", [{"message_ttl": 10}, {"max_length": 0}])
def test_a_queue_whose_dead_letters_are_its_own_drops_them(
    simulated: SimulatedBroker, arguments: dict[str, Any]
) -> None:
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="q", **arguments)
    Client(simulated).publish("", "q", "a")
    simulated.pass_time(10)
    assert simulated.ready("q") == []


def test_a_cycle_with_a_rejection_goes_on(simulated: SimulatedBroker) -> None:
    simulated.queue("work", dead_letter_exchange="", dead_letter_routing_key="wait")
    simulated.queue("wait", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="work")
    client = Client(simulated)
    client.publish("", "work", "a")
    simulated.settle()
    for count in range(1, 5):
        reject(simulated, client, "work")
        simulated.pass_time(10)
        assert deaths(simulated, "work") == [
            ("expired", "wait", count),
            ("rejected", "work", count),
        ]


def test_only_the_queues_of_a_cycle_are_left_out(simulated: SimulatedBroker) -> None:
    simulated.exchange("dlx")
    simulated.queue("q", message_ttl=10, dead_letter_exchange="dlx")
    for queue in ("q", "dead"):
        simulated.bind("dlx", queue)
    Client(simulated).publish("", "q", "a")
    simulated.pass_time(10)
    assert simulated.ready("q") == []
    assert simulated.ready("dead") == ["a"]


def test_a_rejection_before_the_cycle_does_not_keep_it_up(simulated: SimulatedBroker) -> None:
    simulated.queue("first", dead_letter_exchange="", dead_letter_routing_key="q")
    simulated.queue("q", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="r")
    simulated.queue("r", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="q")
    die(simulated, "a", queue="first")
    for _ in range(3):
        simulated.pass_time(10)
    assert simulated.ready("q") == simulated.ready("r") == []


def declare_cycle(simulated: SimulatedBroker, begin: int, length: int) -> None:
    """A way of `begin` queues to a cycle of `length`, through which messages go at once."""
    for number in range(begin + length):
        following = number + 1 if number + 1 < begin + length else begin
        simulated.queue(
            f"q{number}",
            durable=False,
            max_length=0,
            dead_letter_exchange="",
            dead_letter_routing_key=f"q{following}",
        )


def moves_until_it_ends(simulated: SimulatedBroker, most: int) -> int:
    """Return how often a message moves before it is dropped."""
    simulated.settle()
    Client(simulated).publish("", "q0", "a", delivery_mode=1)
    while simulated.broker.pumping.has_work:
        simulated.broker.pumping.pump()
        moves = simulated.services.statistics.dead_letters.total()
        assert moves < most, "it goes round for ever"
    return moves


@pytest.mark.parametrize(("begin", "length"), [(0, 120), (130, 110)])
def test_a_cycle_of_more_queues_than_x_death_has_is_cut(
    simulated: SimulatedBroker, begin: int, length: int
) -> None:
    declare_cycle(simulated, begin, length)
    assert moves_until_it_ends(simulated, 2000) >= begin + length - 1


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("begin", [0, 5, 8])
@pytest.mark.parametrize("length", [2, 8, 19])
def test_it_ends_after_three_times_round(
    simulated: SimulatedBroker, begin: int, length: int, most: int
) -> None:
    simulated.services.limits = BrokerLimits(max_deaths=most)
    declare_cycle(simulated, begin, length)
    assert begin + length - 1 <= moves_until_it_ends(simulated, 3 * (begin + length) + 2)


def test_a_long_cycle_with_a_rejection_goes_on(simulated: SimulatedBroker) -> None:
    simulated.services.limits = BrokerLimits(max_deaths=2)
    simulated.queue("work", dead_letter_exchange="", dead_letter_routing_key="q0")
    for number in range(6):
        following = f"q{number + 1}" if number < 5 else "work"
        simulated.queue(
            f"q{number}", max_length=0, dead_letter_exchange="", dead_letter_routing_key=following
        )
    client = Client(simulated)
    client.publish("", "work", "a")
    simulated.settle()
    for _ in range(5):
        reject(simulated, client, "work")
        simulated.settle()
        assert simulated.ready("work") == ["a"]


# Deaths of before a publish.


def received(simulated: SimulatedBroker, client: Client, queue: str) -> dict[str, Any]:
    """Take the only message of a queue, and return its headers."""
    (headers,) = simulated.headers(queue)
    body = client.get(queue)
    assert body is not None
    client.ack(body)
    return headers


def declare_delays(simulated: SimulatedBroker) -> None:
    """Two queues in which messages wait one after the other, on their way to the queue `work`."""
    for queue, following in (("delay-1", "delay-0"), ("delay-0", "work")):
        to: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": following}
        simulated.queue(queue, message_ttl=10, **to)
    simulated.queue("work")


def test_a_message_that_is_published_with_the_headers_it_came_with_goes_the_same_way_again(
    simulated: SimulatedBroker,
) -> None:
    declare_delays(simulated)
    client = Client(simulated)
    headers: dict[str, Any] = {}
    for count in range(1, 5):
        client.publish("", "delay-1", "a", headers=headers)
        simulated.pass_time(10)
        simulated.pass_time(10)
        assert deaths(simulated, "work") == [
            ("expired", "delay-0", count),
            ("expired", "delay-1", count),
        ]
        headers = received(simulated, client, "work")
        assert LANDMARK not in headers


def test_deaths_that_a_client_invents_drop_nothing(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=10, **DEAD)
    invented = {"queue": "dead", "reason": "expired", "count": 1, "exchange": ""}
    Client(simulated).publish("", "q", "a", headers={"x-death": [invented]})
    simulated.pass_time(10)
    assert deaths(simulated) == [("expired", "q", 1), ("expired", "dead", 1)]


def test_a_cycle_of_a_message_that_was_published_again_is_cut(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="r")
    simulated.queue("r", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="q")
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.pass_time(10)
    client.publish("", "q", "a", headers=received(simulated, client, "r"))
    simulated.pass_time(10)
    assert deaths(simulated, "r") == [("expired", "q", 2)]
    simulated.pass_time(10)
    assert simulated.ready("q") == simulated.ready("r") == []


def test_a_cycle_is_cut_though_a_restart_is_in_its_way(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="r")
    simulated.queue("r", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="q")
    Client(simulated).publish("", "q", "a")
    simulated.pass_time(10)
    simulated.settle()
    simulated.restart()
    simulated.pass_time(10)
    assert simulated.ready("q") == simulated.ready("r") == []


@pytest.mark.parametrize("most", [1, 2, 100])
def test_more_deaths_than_x_death_has_are_published_again(
    simulated: SimulatedBroker, most: int
) -> None:
    simulated.services.limits = BrokerLimits(max_deaths=most)
    declare_chain(simulated, 9, max_length=0)
    simulated.settle()
    client = Client(simulated)
    headers: dict[str, Any] = {}
    for _ in range(3):
        client.publish("", "q0", "a", headers=headers)
        simulated.settle()
        headers = received(simulated, client, "q9")
        assert len(headers["x-death"]) == min(most, 9)


def test_a_replay_from_a_history_goes_the_same_way_again(simulated: SimulatedBroker) -> None:
    simulated.queue("kept", history_length=10)
    simulated.queue(
        "first", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="kept"
    )
    client = Client(simulated)
    client.publish("", "first", "a")
    simulated.pass_time(10)
    received(simulated, client, "kept")
    simulated.settle()
    client.publish(REPLAY_EXCHANGE, "kept", "", headers={"x-replay-to": "first"})
    simulated.settle()
    assert simulated.ready("first") == ["a"]
    simulated.pass_time(10)
    assert simulated.ready("kept") == ["a"]


@pytest.mark.parametrize(
    "forged",
    [
        *("q", 3, {}, {"queue": "dead", "moves": 3}, {"BCC": "guessed", "deaths": 1}),
        {"BCC": "x" * 600, "deaths": 1, "queue": "dead", "moves": 3},
    ],
)
def test_a_landmark_of_a_client_is_nothing(simulated: SimulatedBroker, forged: Any) -> None:
    simulated.queue("q", **DEAD, message_ttl=10)
    headers = {LANDMARK: forged, "x-death": [{"queue": "dead", "reason": "expired"}]}
    Client(simulated).publish("", "q", "a", headers=headers)
    simulated.pass_time(10)
    assert simulated.ready("dead") == ["a"]


# Chains of queues, each of which has its dead letters go to the next.

LAST = 250
"""The last queue of a chain: as nested calls, its moves would exceed Python's recursion limit."""


def declare_chain(simulated: SimulatedBroker, last: int = LAST, **arguments: Any) -> None:
    for number in range(last):
        following = {"dead_letter_exchange": "", "dead_letter_routing_key": f"q{number + 1}"}
        simulated.queue(f"q{number}", durable=False, **following, **arguments)
    simulated.queue(f"q{last}", durable=False)


def test_a_chain_of_any_length(simulated: SimulatedBroker) -> None:
    declare_chain(simulated, max_length=0)
    simulated.settle()  # a queue that was just declared has its turn, whatever comes to it
    Client(simulated).publish("", "q0", "a", delivery_mode=1)
    turns = 0
    while simulated.broker.pumping.has_work:
        simulated.broker.pumping.pump()
        turns += 1
    assert simulated.ready(f"q{LAST}") == ["a"]
    assert turns > LAST // 100, "others have to have their turn in between"


def test_a_chain_of_queues_that_refuse(simulated: SimulatedBroker) -> None:
    """Expired messages of a queue must not be handled while the queue before it is at work."""
    declare_chain(simulated, overflow="reject-publish", max_length=10, message_ttl=100)
    client = Client(simulated)
    for number in range(LAST):
        client.publish("", f"q{number}", f"{number}", delivery_mode=1)
    simulated.clock.advance(200)
    client.publish("", "q0", "again", delivery_mode=1)
    for _ in range(3):
        simulated.broker.pumping.pump()
    assert simulated.broker.set_aside == []
    found = sum(simulated.vhost.queue(f"q{number}").ready_count for number in range(LAST + 1))
    assert found == LAST + 1


def test_a_letter_is_shown_without_a_look_at_its_other_headers(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter may have thousands, and a consumer thousands of letters: its landmark is first."""
    simulated.queue("q", **DEAD)
    die(simulated, "a", headers={"one": 1, "two": 2})
    got = Client(simulated).channel.get(simulated.vhost.queue("dead"), no_ack=True)
    assert got is not None
    assert got[1].messages is not None
    raw = got[1].messages[0].envelope.properties
    monkeypatch.setattr(envelope, "edit_properties", None)
    assert next(iter(decode_properties(raw).headers or {})) == LANDMARK
    assert LANDMARK not in (decode_properties(envelope.visible(raw)).headers or {})
