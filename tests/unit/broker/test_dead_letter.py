"""Dead letters: the headers that RabbitMQ writes, where they go, and which cycles are cut (H09 to
H12)."""

from typing import Any

import pytest

from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.limits import BROKER_LIMITS, BrokerLimits
from amqpstore_server.broker.messages.deaths import LANDMARK
from amqpstore_server.broker.policy import Policy
from amqpstore_server.protocol.content import decode_properties
from amqpstore_server.protocol.field_table import Timestamp
from tests.simulated_broker import START_MS, SimulatedBroker
from tests.unit.broker.simulated import Client

DEAD: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = SimulatedBroker()
    simulated.queue("dead")
    return simulated


def die(simulated: SimulatedBroker, body: str, *, queue: str = "q", **properties: Any) -> None:
    """Publish a message to a queue, and reject it."""
    client = Client(simulated)
    client.publish("", queue, body, **properties)
    simulated.settle()
    reject(simulated, client, queue)


def reject(simulated: SimulatedBroker, client: Client, queue: str) -> None:
    """Reject what is at the head of a queue."""
    body = client.get(queue)
    assert body is not None
    client.reject(body)
    simulated.settle()


def deaths(simulated: SimulatedBroker, queue: str = "dead") -> list[tuple[Any, ...]]:
    """Reason, queue and count of each death of the only message in a queue."""
    (headers,) = simulated.headers(queue)
    return [(one["reason"], one["queue"], one["count"]) for one in headers["x-death"]]


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
    simulated.vhost.declare_exchange(
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
    """How often a message moves before it is dropped."""
    simulated.settle()
    Client(simulated).publish("", "q0", "a", delivery_mode=1)
    moves = 0
    while simulated.broker.has_work:
        simulated.broker.pump()
        moves += simulated.context.moves
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
    simulated.context.limits = BrokerLimits(max_deaths=most)
    declare_cycle(simulated, begin, length)
    assert begin + length - 1 <= moves_until_it_ends(simulated, 3 * (begin + length) + 2)


def test_a_long_cycle_with_a_rejection_goes_on(simulated: SimulatedBroker) -> None:
    simulated.context.limits = BrokerLimits(max_deaths=2)
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


@pytest.mark.parametrize(
    "forged", ["q", 3, {}, {"queue": "q"}, {"queue": 3, "moves": 3}, {"queue": "q", "moves": -1}]
)
def test_a_landmark_that_is_none_is_nothing(simulated: SimulatedBroker, forged: Any) -> None:
    simulated.queue("q", **DEAD)
    die(simulated, "a", headers={LANDMARK: forged})
    assert simulated.ready("dead") == ["a"]


# A disk that is full.


@pytest.mark.parametrize("how", ["get", "consume"])
def test_what_cannot_leave_for_want_of_disk_stays_and_says_that_it_was_delivered(
    simulated: SimulatedBroker, how: str
) -> None:
    simulated.queue("q", **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    if how == "consume":
        client.consume("q", "t", prefetch=1)
        simulated.settle()
    else:
        simulated.settle()
        assert client.get("q") == "a"
    simulated.fill_disk()
    client.reject("a")
    simulated.free_disk()
    simulated.settle()
    assert simulated.ready("dead") == []
    if how == "get":
        assert client.get("q") == "a"
    assert client.redelivered == [False, True]
    client.reject("a")
    simulated.settle()
    assert simulated.ready("dead") == ["a"]


def test_what_expires_while_the_disk_is_full_leaves_later(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=10, **DEAD)
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    simulated.fill_disk()
    simulated.clock.advance(10)
    simulated.context.run_timers()
    simulated.free_disk()
    assert simulated.ready("q") == ["a"]
    simulated.pass_time(1000)
    assert simulated.ready("dead") == ["a"]


def test_a_full_disk_is_tried_again_after_a_second_and_not_all_the_time(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", message_ttl=10, **DEAD)
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    simulated.fill_disk()
    simulated.clock.advance(10)
    simulated.context.run_timers()
    simulated.broker.pump()
    assert simulated.context.ms_to_next_timer() == 1000


# Limits.


def test_what_is_given_back_counts_for_the_length(simulated: SimulatedBroker) -> None:
    simulated.queue("q", max_length=1, **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    client.get("q")
    client.publish("", "q", "b")
    client.requeue("a")
    simulated.settle()
    assert simulated.ready("q") == ["b"]
    assert simulated.ready("dead") == ["a"]


def test_a_transaction_that_a_full_queue_refuses_is_refused_as_a_whole(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", max_length=1, overflow="reject-publish")
    client = Client(simulated)
    client.channel.select_transactions()
    client.publish("", "q", "a")
    client.publish("", "dead", "b")
    client.publish("", "q", "c", priority=1)
    with pytest.raises(PreconditionFailedError, match="queue 'q' is full"):
        client.channel.commit()
    simulated.settle()
    assert simulated.ready("q") == simulated.ready("dead") == []


def test_what_others_committed_counts_before_it_is_durable(simulated: SimulatedBroker) -> None:
    simulated.queue("q", max_length=1, overflow="reject-publish")
    one, other = Client(simulated), Client(simulated)
    one.channel.select_transactions()
    one.publish("", "q", "a")
    one.channel.commit()
    other.channel.select_confirms()
    other.publish("", "q", "b")
    simulated.settle()
    assert simulated.ready("q") == ["a"]
    assert other.told == ["refused 1"]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_policy_that_comes_while_something_is_on_its_way_does_not_miscount(
    simulated: SimulatedBroker, overflow: str
) -> None:
    simulated.queue("q", max_length=2)
    policies = [
        Policy("p", "^q$", definition={"overflow": one}) for one in ("drop-head", "reject-publish")
    ]
    simulated.vhost.define_policies(
        [one for one in policies if one.definition["overflow"] == overflow], operator=False
    )
    one, other = Client(simulated), Client(simulated)
    one.channel.select_transactions()
    one.publish("", "q", "a", "b")
    one.channel.commit()
    simulated.vhost.define_policies(policies[1:], operator=False)
    simulated.settle()
    other.channel.select_confirms()
    other.publish("", "q", "c")
    simulated.settle()
    assert simulated.ready("q") == ["a", "b"]
    assert other.told == ["refused 1"]


@pytest.mark.parametrize("excess", [1, 3, 4, 5, 9])
def test_what_is_dropped_in_several_turns_is_all_that_is_too_much(
    simulated: SimulatedBroker, excess: int
) -> None:
    simulated.context.limits = BrokerLimits(max_dropped=4)
    simulated.queue("q", **DEAD)
    bodies = [str(number) for number in range(excess + 2)]
    Client(simulated).publish("", "q", *bodies)
    simulated.settle()
    policy = Policy("p", "^q$", definition={"max-length": 2})
    simulated.vhost.define_policies([policy], operator=False)
    simulated.settle()
    assert simulated.ready("q") == bodies[-2:]
    assert simulated.ready("dead") == bodies[:-2]


@pytest.mark.parametrize("order", [1, -1])
def test_what_expires_in_several_turns_is_all_that_is_due(
    simulated: SimulatedBroker, order: int
) -> None:
    simulated.queue("q", **DEAD)
    client = Client(simulated)
    for ms in range(1, 50)[::order]:
        client.publish("", "q", str(ms), expiration=str(ms))
    simulated.settle()
    simulated.pass_time(48)
    assert simulated.ready("q") == ["49"]
    assert simulated.ready("dead") == [str(ms) for ms in range(1, 49)]


def test_what_is_given_back_expires_though_nothing_was_left_to_watch(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", **DEAD)
    client = Client(simulated)
    client.publish("", "q", "later", expiration="30")
    simulated.settle()
    client.get("q")
    client.publish("", "q", "sooner", expiration="10")
    simulated.settle()
    simulated.pass_time(10)
    client.requeue("later")
    simulated.pass_time(20)
    assert simulated.ready("dead") == ["sooner", "later"]


def test_what_is_put_back_expires_still(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=100, **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    client.get("q")
    simulated.pass_time(50)
    simulated.fill_disk()
    client.reject("a")
    simulated.free_disk()
    simulated.pass_time(2000)
    assert simulated.ready("q") == []
    assert deaths(simulated) == [("expired", "q", 1)]


def test_what_is_put_back_after_its_time_expires_still(simulated: SimulatedBroker) -> None:
    simulated.queue("q", message_ttl=100, **DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    client.get("q")
    simulated.pass_time(200)
    simulated.fill_disk()
    client.reject("a")
    simulated.free_disk()
    simulated.pass_time(2000)
    assert simulated.ready("q") == []
    assert deaths(simulated) == [("expired", "q", 1)]


def test_what_a_restart_drops_is_taken_in_as_the_target_says(simulated: SimulatedBroker) -> None:
    simulated.queue("a", max_length=0, dead_letter_exchange="", dead_letter_routing_key="b")
    simulated.queue("b", message_ttl=10)
    client = Client(simulated)
    client.consume("a", "c", prefetch=1)
    client.publish("", "a", "1")
    simulated.settle()
    assert client.bodies("c") == ["1"]
    simulated.restart()
    simulated.settle()
    assert simulated.ready("b") == ["1"]
    simulated.pass_time(10)
    assert simulated.ready("b") == []


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
    """As RabbitMQ did before 3.5, and shovels from there do."""
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


# Chains of queues, each of which has its dead letters go to the next.

LAST = 250
"""One within the other, the moves of so many would be more calls than Python has room for."""


def declare_chain(simulated: SimulatedBroker, **arguments: Any) -> None:
    for number in range(LAST):
        following = {"dead_letter_exchange": "", "dead_letter_routing_key": f"q{number + 1}"}
        simulated.queue(f"q{number}", durable=False, **following, **arguments)
    simulated.queue(f"q{LAST}", durable=False)


def test_a_chain_of_any_length(simulated: SimulatedBroker) -> None:
    declare_chain(simulated, max_length=0)
    simulated.settle()  # a queue that was just declared has its turn, whatever comes to it
    Client(simulated).publish("", "q0", "a", delivery_mode=1)
    turns = 0
    while simulated.broker.has_work:
        simulated.broker.pump()
        turns += 1
    assert simulated.ready(f"q{LAST}") == ["a"]
    assert turns > LAST // 100, "others have to have their turn in between"


def test_a_chain_of_queues_that_refuse(simulated: SimulatedBroker) -> None:
    """What has expired in each of them must not be seen to while the one before is at work."""
    declare_chain(simulated, overflow="reject-publish", max_length=10, message_ttl=100)
    client = Client(simulated)
    for number in range(LAST):
        client.publish("", f"q{number}", f"{number}", delivery_mode=1)
    simulated.clock.advance(200)
    client.publish("", "q0", "again", delivery_mode=1)
    for _ in range(3):
        simulated.broker.pump()
    assert simulated.broker.set_aside == []
    found = sum(simulated.vhost.queue(f"q{number}").ready_count for number in range(LAST + 1))
    assert found == LAST + 1
