"""Dead letters: the headers that RabbitMQ writes, and where they go (H09 to H12)."""

from typing import Any

import pytest

from amqpstore_server.broker.work.limits import BROKER_LIMITS
from amqpstore_server.protocol.content import decode_properties
from amqpstore_server.protocol.field_table import Timestamp
from tests.simulated_broker import START_MS, SimulatedBroker, reject_until
from tests.unit.broker.dead_letters import DEAD, deaths, die, reject, with_dead_queue
from tests.unit.broker.simulated import Client


@pytest.fixture
def simulated() -> SimulatedBroker:
    return with_dead_queue()


# Headers.


def test_the_first_death(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **DEAD)
    die(simulated, "a", headers={"own": 1})
    (headers,) = simulated.headers("dead")
    assert headers == {
        "own": 1,
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "q",
                "time": Timestamp(START_MS // 1000),
                "exchange": "",
                "routing-keys": ["q"],
            }
        ],
        "x-first-death-reason": "rejected",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "q",
        "x-last-death-exchange": "",
    }


def test_the_newest_death_is_first_and_equal_ones_are_counted(simulated: SimulatedBroker) -> None:
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="r")
    simulated.queue("r", dead_letter_exchange="", dead_letter_routing_key="q")
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    for queue in ("q", "r", "q"):
        reject(simulated, client, queue)
    assert deaths(simulated, "r") == [("rejected", "q", 2), ("rejected", "r", 1)]
    (headers,) = simulated.headers("r")
    assert headers["x-first-death-queue"] == "q"
    assert headers["x-last-death-queue"] == "q"
    reject(simulated, client, "r")
    assert deaths(simulated, "q") == [("rejected", "r", 2), ("rejected", "q", 2)]
    (headers,) = simulated.headers("q")
    assert headers["x-first-death-queue"] == "q"
    assert headers["x-last-death-queue"] == "r"


def test_another_reason_in_the_same_queue_is_another_death(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="r")
    simulated.queue("r", dead_letter_exchange="", dead_letter_routing_key="q")
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.pass_time(10)
    reject(simulated, client, "r")
    reject(simulated, client, "q")
    assert deaths(simulated, "r") == [
        ("rejected", "q", 1),
        ("rejected", "r", 1),
        ("expired", "q", 1),
    ]
    (headers,) = simulated.headers("r")
    assert headers["x-first-death-reason"] == "expired"
    assert headers["x-last-death-reason"] == "rejected"


def test_the_time_is_that_of_the_first_death_of_its_kind(simulated: SimulatedBroker) -> None:
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="q")
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    for _ in range(3):
        reject(simulated, client, "q")
        simulated.pass_time(5000)
    (headers,) = simulated.headers("q")
    assert headers["x-death"][0]["time"] == START_MS // 1000
    assert headers["x-death"][0]["count"] == 3


def test_an_expiration_is_taken_off_and_remembered(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a", expiration="50", message_id="kept")
    simulated.pass_time(50)
    (message,) = simulated.messages("dead")
    properties = decode_properties(message.envelope.properties)
    assert properties.expiration is None
    assert properties.message_id == "kept"
    (headers,) = simulated.headers("dead")
    assert headers["x-death"][0]["original-expiration"] == "50"
    simulated.pass_time(10_000)
    assert simulated.ready("dead") == ["a"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"message_ttl": 10}, "expired"),
        ({"max_length": 0}, "maxlen"),
        ({"max_length_bytes": 0}, "maxlen"),
        ({"max_length": 0, "overflow": "reject-publish-dlx"}, "maxlen"),
    ],
)
def test_reasons_without_a_consumer(
    simulated: SimulatedBroker, arguments: dict[str, Any], reason: str
) -> None:
    simulated.queue("q", **arguments, **DEAD)
    Client(simulated).publish("", "q", "a")
    simulated.pass_time(10)
    assert deaths(simulated) == [(reason, "q", 1)]


def test_delivered_too_often_is_a_reason(simulated: SimulatedBroker) -> None:
    simulated.queue("q", delivery_limit=1, **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    for _ in range(2):
        assert client.get("q") == "a"
        client.requeue("a")
    simulated.settle()
    assert deaths(simulated) == [("delivery_limit", "q", 1)]


@pytest.mark.parametrize("how", ["purge", "delete", "expire"])
def test_what_goes_with_its_queue_is_no_dead_letter(simulated: SimulatedBroker, how: str) -> None:
    queue = simulated.queue("q", expires=100, **DEAD)
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    if how == "purge":
        queue.backlog.purge()
    elif how == "delete":
        simulated.vhost.delete_queue(queue)
    simulated.pass_time(100)
    assert simulated.ready("dead") == []
    assert "q" not in simulated.vhost.queues


def test_no_message_is_lost_that_moved_just_before_its_queue_was_deleted(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a", "b")
    simulated.settle()
    for _ in range(2):
        client.get("q")
    client.reject("a")
    end_sync = simulated.write_batch()
    client.reject("b")
    end_sync()  # of the first move, not of the second
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    simulated.crash()
    assert simulated.ready("dead") == ["a", "b"]


# What a client may have put there before.


@pytest.mark.parametrize(
    "forged",
    [
        5,
        "x",
        None,
        {"queue": "q"},
        [],
        [5, "x", None, []],
        [{}],
        [{"queue": 5, "reason": ["rejected"]}],
        [{"queue": "other", "reason": "rejected", "count": "many", "time": 1.5}],
        [{"queue": "q", "reason": "rejected", "count": "many"}],
        [{"queue": "q", "reason": "rejected", "count": None, "time": None}],
        [{"queue": "q", "reason": "rejected", "count": 0}] * 2,
    ],
)
def test_whatever_a_client_put_there_it_dies_in_order(
    simulated: SimulatedBroker, forged: Any
) -> None:
    simulated.queue("q", **DEAD)
    die(simulated, "a", headers={"x-death": forged})
    assert deaths_begin(simulated) == ("rejected", "q", 1)


def deaths_begin(simulated: SimulatedBroker) -> tuple[Any, ...]:
    (headers,) = simulated.headers("dead")
    first = headers["x-death"][0]
    return first["reason"], first["queue"], first["count"]


@pytest.mark.parametrize("count", [(1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize("queue", ["q", "other"])
def test_a_count_that_cannot_grow_does_no_harm(
    simulated: SimulatedBroker, count: int, queue: str
) -> None:
    simulated.queue("q", message_ttl=10, **DEAD)
    forged = [{"queue": queue, "reason": "expired", "count": count}]
    Client(simulated).publish("", "q", "a", headers={"x-death": forged})
    simulated.pass_time(10)
    assert simulated.ready("dead") == ["a"]


def test_as_many_headers_as_there_may_be_do_no_harm(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="r")
    simulated.queue("r", message_ttl=10, **DEAD)
    headers = {f"h{number}": number for number in range(1024)}
    Client(simulated).publish("", "q", "a", headers=headers)
    simulated.pass_time(10)
    simulated.pass_time(10)
    assert simulated.ready("dead") == ["a"]


# Where they go.


def test_without_a_routing_key_its_own_keys_are_kept(simulated: SimulatedBroker) -> None:
    simulated.exchange("dlx", "direct")
    simulated.queue("q", dead_letter_exchange="dlx")
    for queue, key in (("one", "q"), ("two", "cc"), ("three", "bcc")):
        simulated.queue(queue)
        simulated.bind("dlx", queue, key)
    die(simulated, "a", headers={"CC": ["cc"], "BCC": ["bcc"]})
    for queue in ("one", "two", "three"):
        assert simulated.ready(queue) == ["a"]
    (headers,) = simulated.headers("one")
    assert headers["x-death"][0]["routing-keys"] == ["q", "cc"]


def test_with_a_routing_key_it_has_no_other(simulated: SimulatedBroker) -> None:
    simulated.queue("cc")
    simulated.queue("bcc")
    simulated.queue("q", **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a", headers={"CC": ["cc"], "BCC": ["bcc"]})
    simulated.settle()
    for queue in ("cc", "bcc"):
        simulated.vhost.queue(queue).backlog.purge()
    reject(simulated, client, "q")
    (message,) = simulated.messages("dead")
    assert message.envelope.routing_key == "dead"
    assert {"CC", "BCC"}.isdisjoint(simulated.headers("dead")[0])
    assert simulated.ready("cc") == simulated.ready("bcc") == []


def test_through_an_internal_exchange(simulated: SimulatedBroker) -> None:
    simulated.vhost.exchange_definitions.declare(
        "dlx", "fanout", durable=True, auto_delete=False, internal=True, arguments={}
    )
    simulated.bind("dlx", "dead")
    simulated.queue("q", dead_letter_exchange="dlx")
    die(simulated, "a")
    assert simulated.ready("dead") == ["a"]


@pytest.mark.parametrize("exchange", ["missing", "unbound"])
def test_where_nothing_takes_it_it_is_dropped(simulated: SimulatedBroker, exchange: str) -> None:
    simulated.exchange("unbound", "direct")
    simulated.queue("q", dead_letter_exchange=exchange)
    die(simulated, "a")
    assert simulated.ready("q") == []


def test_a_queue_that_refuses_publishers_takes_dead_letters(simulated: SimulatedBroker) -> None:
    simulated.queue("full", max_length=1, overflow="reject-publish")
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="full")
    for body in ("a", "b"):
        die(simulated, body)
    assert simulated.ready("full") == ["a", "b"]


def test_a_dead_letter_has_the_ttl_of_where_it_goes(simulated: SimulatedBroker) -> None:
    simulated.queue("slow", message_ttl=100)
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="slow")
    die(simulated, "a", expiration="10000")
    simulated.pass_time(99)
    assert simulated.ready("slow") == ["a"]
    simulated.pass_time(1)
    assert simulated.ready("slow") == []


# Whatever a client put into these headers.


@pytest.mark.parametrize(
    ("count", "after"),
    [
        (Timestamp((1 << 64) - 1), (1 << 63) - 1),
        ((1 << 63) - 1, (1 << 63) - 1),
        (-(1 << 63), 1),
        (-1, 1),
        ("many", 1),
        (True, 1),
        (1.5, 1),
        (None, 1),
    ],
)
def test_a_count_of_the_clients_own(simulated: SimulatedBroker, count: Any, after: int) -> None:
    simulated.queue("q", **DEAD)
    forged = {"count": count, "queue": "q", "reason": "rejected"}
    die(simulated, "a", headers={"x-death": [forged]})
    assert deaths(simulated) == [("rejected", "q", after)]


def test_what_is_not_of_this_queue_stays_as_it_is(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **DEAD)
    forged = {"count": Timestamp((1 << 64) - 1), "queue": b"\xff", "reason": [1.5, {"a": None}]}
    die(simulated, "a", headers={"x-death": [forged, 1, "x", [{}], forged]})
    (headers,) = simulated.headers("dead")
    assert headers["x-death"][1:] == [forged, forged]


def test_deaths_that_were_written_one_by_one_are_counted_together(
    simulated: SimulatedBroker,
) -> None:
    """RabbitMQ wrote deaths so before 3.5, and shovels from there still do."""
    simulated.queue("q", **DEAD)
    old = [
        {"queue": queue, "reason": reason}
        for queue, reason in (
            ("other", "expired"),
            ("q", "rejected"),
            ("other", "expired"),
            ("q", "expired"),
            ("q", "rejected"),
        )
    ]
    die(simulated, "a", headers={"x-death": [*old, {**old[0], "count": 7}]})
    assert deaths(simulated) == [
        ("rejected", "q", 3),
        ("expired", "other", 3),
        ("expired", "q", 1),
    ]


def test_a_count_that_is_there_is_kept_when_deaths_are_merged(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **DEAD)
    one = {"queue": "q", "reason": "rejected"}
    die(simulated, "a", headers={"x-death": [{**one, "count": 4}, one]})
    assert deaths(simulated) == [("rejected", "q", 5)]


def test_the_oldest_deaths_are_dropped(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **DEAD)
    max_deaths = BROKER_LIMITS.max_deaths
    forged = [{"count": 1, "queue": f"q{n}", "reason": "expired"} for n in range(max_deaths)]
    die(simulated, "a", headers={"x-death": forged})
    assert [queue for _, queue, _ in deaths(simulated)] == [
        "q",
        *(f"q{n}" for n in range(max_deaths - 1)),
    ]


def test_dead_letters_of_a_delayed_exchange_wait_for_their_own_time() -> None:
    """Though they leave their queue together."""
    simulated = SimulatedBroker()
    simulated.exchange("later", "x-delayed-message", x_delayed_type="direct")
    simulated.queue("late")
    simulated.bind("later", "late", "late")
    simulated.queue("q", dead_letter_exchange="later", dead_letter_routing_key="late")
    client = Client(simulated)
    for body, delay_ms in (("second", 1000), ("first", 100), ("third", 5000)):
        client.publish("", "q", body, headers={"x-delay": delay_ms})
    client.consume("q", "tag")
    simulated.settle()
    reject_until(client.channel, 0, requeue=False)
    simulated.settle()
    seen = []
    for ms in (100, 900, 4000):
        simulated.pass_time(ms)
        seen.append(simulated.ready("late"))
    assert seen == [["first"], ["first", "second"], ["first", "second", "third"]]
