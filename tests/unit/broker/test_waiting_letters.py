"""Dead letters that go at least once: they wait in their queue until all targets take them."""

import logging
from typing import Any

import pytest

from amqpstore.format.departures import Departure
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.monitoring.departures import dead_lettered, labelled
from amqpstore_server.broker.queues.message_sums import MessageSums
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.rules.policy import Policy
from amqpstore_server.broker.rules.settings import LetterStrategy
from amqpstore_server.broker.work.limits import BROKER_LIMITS
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.branches import BranchClient
from tests.unit.broker.dead_letters import deaths, die, reject
from tests.unit.broker.simulated import Client

KEPT: dict[str, Any] = {
    "overflow": "reject-publish",
    "dead_letter_strategy": "at-least-once",
    "dead_letter_exchange": "dlx",
}
TO_DEAD = {**KEPT, "dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
SOON_MS = 200
"""The time in which a change is noticed."""
ROOM_MS = 2000
"""The time in which it is noticed that a queue has room."""


def waiting(simulated: SimulatedBroker, name: str = "q") -> dict[str, int]:
    """Return how many letters wait in a queue, by reason; check that all are counted."""
    queue = simulated.vhost.queue(name)
    reasons = {} if queue.letters is None else dict(queue.letters.reasons)
    assert sum(reasons.values()) == queue.letter_count
    return reasons


def left(queue: Queue) -> dict[str, int]:
    """Return how many messages have left a queue, by reason."""
    return labelled({reason: queue.departures.left[reason] for reason in Departure})


@pytest.mark.parametrize("how", ["rejected", "expired", "delivery_limit"])
@pytest.mark.parametrize("arguments", [{}, {"queue_type": "quorum"}, {"queue_mode": "lazy"}])
def test_a_letter_waits_until_it_has_a_route_and_goes_there(
    simulated: SimulatedBroker, how: str, arguments: dict[str, Any]
) -> None:
    queue = simulated.queue("q", **KEPT, delivery_limit=0, **arguments)
    client = Client(simulated)
    client.publish("", "q", "a", expiration="10" if how == "expired" else None)
    simulated.settle()
    if how == "expired":
        simulated.pass_time(10)
    else:
        assert client.get("q") == "a"
        (client.reject if how == "rejected" else client.requeue)("a")
        simulated.settle()
    assert waiting(simulated) == {"there is no exchange 'dlx'": 1}
    assert client.get("q") is None
    assert left(queue) == {}
    simulated.exchange("dlx")
    simulated.pass_time(SOON_MS)
    assert waiting(simulated) == {"exchange 'dlx' leads to no queue": 1}
    simulated.queue("dead")
    simulated.bind("dlx", "dead")
    simulated.pass_time(SOON_MS)
    assert waiting(simulated) == {}
    assert deaths(simulated) == [(how, "q", 1)]
    assert "x-died" not in simulated.headers("dead")[0]
    assert left(queue) == {how: 1}
    assert labelled(dead_lettered(queue.departures)) == {how: 1}
    statistics = simulated.services.statistics
    counted = {key: count for key, count in statistics.dead_letters.items() if count}
    assert counted == {(Reason(how), LetterStrategy.AT_LEAST_ONCE): 1}
    assert statistics.arrived_letters == 1


def test_a_letter_goes_at_once_where_all_is_well(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **TO_DEAD)
    simulated.queue("dead")
    die(simulated, "a", expiration="5000", priority=3, headers={"x": 1})
    assert simulated.ready("dead") == ["a"]
    (headers,) = simulated.headers("dead")
    assert headers["x"] == 1
    assert headers["x-death"][0]["original-expiration"] == "5000"
    simulated.pass_time(10_000)
    assert simulated.ready("dead") == ["a"]


def test_letters_keep_their_order(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **TO_DEAD)
    bodies = [f"m{number}" for number in range(200)]
    for body in bodies:
        die(simulated, body)
    simulated.queue("dead")
    simulated.pass_time(SOON_MS)
    assert simulated.ready("dead") == bodies


def test_a_target_without_room_is_tried_again_and_nobody_overtakes(
    simulated: SimulatedBroker,
) -> None:
    simulated.queue("q", **TO_DEAD)
    simulated.queue("dead", max_length=2, overflow="reject-publish")
    for body in "abcd":
        die(simulated, body)
    assert waiting(simulated) == {"queue 'dead' is full": 2}
    client = Client(simulated)
    assert client.get("dead") == "a"
    client.ack("a")
    die(simulated, "e")
    assert simulated.ready("dead") == ["b"]
    simulated.pass_time(ROOM_MS)
    assert simulated.ready("dead") == ["b", "c"]
    assert waiting(simulated) == {"queue 'dead' is full": 2}


def test_room_in_bytes_counts_too(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **TO_DEAD)
    simulated.queue("dead", max_length_bytes=5, overflow="reject-publish")
    for body in ("1234", "5678", "9"):
        die(simulated, body)
    assert waiting(simulated) == {"queue 'dead' is full": 2}
    assert simulated.ready("dead") == ["1234"]


def test_a_letter_goes_to_all_of_its_targets_or_to_none(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **KEPT)
    simulated.exchange("dlx")
    simulated.queue("one")
    simulated.queue("full", max_length=1, overflow="reject-publish")
    for name in ("one", "full"):
        simulated.bind("dlx", name)
    client = Client(simulated)
    client.publish("", "full", "x")
    die(simulated, "a")
    assert simulated.ready("one") == []
    assert waiting(simulated) == {"queue 'full' is full": 1}
    assert client.get("full") == "x"
    client.ack("x")
    simulated.pass_time(ROOM_MS)
    assert (simulated.ready("one"), simulated.ready("full")) == (["a"], ["a"])


def test_a_target_that_drops_its_oldest_takes_all(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **TO_DEAD)
    simulated.queue("dead", max_length=1)
    for body in "ab":
        die(simulated, body)
    assert simulated.ready("dead") == ["b"]
    assert waiting(simulated) == {}


def test_each_letter_waits_for_its_own_route(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **KEPT)
    simulated.exchange("in")
    simulated.exchange("dlx", "direct")
    simulated.bind("in", "q")
    simulated.queue("one")
    simulated.bind("dlx", "one", "1")
    client = Client(simulated)
    for key in "123":
        client.publish("in", key, f"to {key}")
        simulated.settle()
        reject(simulated, client, "q")
    assert simulated.ready("one") == ["to 1"]
    assert waiting(simulated) == {"exchange 'dlx' leads to no queue": 2}
    simulated.bind("dlx", "one", "3")
    simulated.pass_time(SOON_MS)
    assert simulated.ready("one") == ["to 1", "to 3"]
    assert waiting(simulated) == {"exchange 'dlx' leads to no queue": 1}


def test_more_keys_and_headers_are_looked_at_letter_by_letter(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **KEPT)
    simulated.exchange("dlx", "direct")
    client = Client(simulated)
    for body, headers in (("a", {}), ("b", {"CC": ["other"]})):
        client.publish("", "q", body, headers=headers)
        simulated.settle()
        reject(simulated, client, "q")
    simulated.queue("dead")
    simulated.bind("dlx", "dead", "other")
    simulated.pass_time(SOON_MS)
    assert simulated.ready("dead") == ["b"]


def test_settings_of_now_say_where_it_goes(simulated: SimulatedBroker) -> None:
    arguments = {key: value for key, value in KEPT.items() if key != "dead_letter_exchange"}
    queue = simulated.queue("q", **arguments)
    policies = simulated.vhost.policy_settings
    policies.define([Policy("p", "q", definition={"dead-letter-exchange": "typo"})], operator=False)
    die(simulated, "a")
    assert waiting(simulated) == {"there is no exchange 'typo'": 1}
    policies.define([], operator=False)
    simulated.settle()
    assert waiting(simulated) == {"its queue has no dead-letter exchange any more": 1}
    simulated.queue("dead")
    good = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    policies.define([Policy("p", "q", definition=good)], operator=False)
    simulated.settle()
    assert simulated.ready("dead") == ["a"]
    assert queue.letter_count == 0


def test_by_policy_alone(simulated: SimulatedBroker) -> None:
    simulated.queue("q")
    definition = {key.replace("_", "-"): value for key, value in KEPT.items()}
    policies = simulated.vhost.policy_settings
    policies.define([Policy("p", "q", definition=definition)], operator=False)
    die(simulated, "a")
    assert waiting(simulated) == {"there is no exchange 'dlx'": 1}
    # What waits goes on waiting: only what dies from now on goes at most once.
    policies.define([Policy("p", "q", definition={"dead-letter-exchange": "dlx"})], operator=False)
    die(simulated, "b")
    assert waiting(simulated) == {"there is no exchange 'dlx'": 1}
    simulated.exchange("dlx")
    simulated.queue("dead")
    simulated.bind("dlx", "dead")
    simulated.pass_time(SOON_MS)
    assert simulated.ready("dead") == ["a"]


@pytest.mark.parametrize(
    "without",
    [{"overflow": "drop-head"}, {"dead_letter_exchange": None}],
)
def test_where_it_cannot_act_that_is_said(
    simulated: SimulatedBroker, without: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    arguments = {key: value for key, value in {**KEPT, **without}.items() if value is not None}
    queue = simulated.queue("q", **arguments)
    (note,) = [vars(one)["note"] for one in caplog.records if hasattr(one, "note")]
    assert note.startswith("dead-letter-strategy 'at-least-once' has no effect here")
    die(simulated, "a")
    assert queue.letters is None
    assert sum(queue.departures.left) == 1


def test_letters_count_in_the_length_of_their_queue(simulated: SimulatedBroker) -> None:
    queue = simulated.queue("q", max_length=2, max_length_bytes=100, **KEPT)
    client = Client(simulated)
    client.channel.select_confirms()
    for body in "ab":
        client.publish("", "q", body)
        simulated.settle()
        reject(simulated, client, "q")
    client.publish("", "q", "c")
    simulated.settle()
    assert client.told[-1] == "refused 3"
    sums = MessageSums.of(queue)
    assert (sums.ready.messages, sums.letters, sums.total) == (0, (2, 2), (2, 2))
    assert (sums.in_memory, sums.persistent) == ((2, 2), (2, 2))
    queue.backlog.purge()
    client.publish("", "q", "d")
    simulated.settle()
    assert simulated.ready("q") == ["d"]


def test_a_queue_full_of_letters_to_itself_lets_them_go(simulated: SimulatedBroker) -> None:
    arguments = {**KEPT, "dead_letter_exchange": "", "dead_letter_routing_key": "q"}
    simulated.queue("q", max_length=1, **arguments)
    die(simulated, "a")
    assert simulated.ready("q") == ["a"]


def test_a_cycle_waits_until_something_leads_out_of_it(simulated: SimulatedBroker) -> None:
    """A letter that goes at least once is not dropped for a cycle, as in RabbitMQ."""
    simulated.exchange("dlx")
    queue = simulated.queue("q", message_ttl=10, **KEPT)
    simulated.bind("dlx", "q")
    Client(simulated).publish("", "q", "a")
    simulated.settle()
    simulated.pass_time(10)
    assert (queue.ready_count, queue.letter_count) == (0, 1)
    assert waiting(simulated) == {"queue 'q' had it before: it would go in a cycle": 1}
    simulated.pass_time(ROOM_MS)
    assert left(queue) == {}
    simulated.queue("out")
    simulated.bind("dlx", "out")
    simulated.pass_time(SOON_MS)
    assert simulated.ready("out") == ["a"]
    assert (queue.ready_count, queue.letter_count) == (0, 0)
    assert left(queue) == {"expired": 1}


def test_a_cycle_holds_up_nothing_else(simulated: SimulatedBroker) -> None:
    """A full queue holds up nothing else either."""
    simulated.exchange("dlx", "direct")
    simulated.queue("q", message_ttl=10, **KEPT)
    simulated.queue("full", max_length=0, overflow="reject-publish")
    simulated.queue("out")
    for name in ("q", "full", "out"):
        simulated.bind("dlx", name, name)
    simulated.bind("amq.fanout", "q")
    client = Client(simulated)
    for number in range(100):
        for key in ("q", "full", "out"):
            client.publish("amq.fanout", key, f"{key}{number}")
    simulated.settle()
    simulated.pass_time(10)
    assert simulated.ready("out") == [f"out{number}" for number in range(100)]
    assert waiting(simulated) == {
        "queue 'full' is full": 100,
        "queue 'q' had it before: it would go in a cycle": 100,
    }


def test_purge_takes_letters_and_undo_brings_them_back(simulated: SimulatedBroker) -> None:
    queue = simulated.queue("q", purge_undo_seconds=60, **TO_DEAD)
    for body in "ab":
        die(simulated, body, delivery_mode=2)
    Client(simulated).publish("", "q", "c", delivery_mode=2)
    simulated.settle()
    assert queue.backlog.purge() == 3
    assert left(queue) == {"purged": 3}
    assert waiting(simulated) == {}
    purged = queue.purges.last
    assert purged is not None
    assert queue.purges.undo(purged) == 3
    simulated.settle()
    assert waiting(simulated) == {"there is no queue 'dead'": 2}
    simulated.queue("dead")
    simulated.pass_time(SOON_MS)
    assert simulated.ready("dead") == ["a", "b"]
    assert simulated.ready("q") == ["c"]


def test_the_letters_can_be_purged_alone(simulated: SimulatedBroker) -> None:
    queue = simulated.queue("q", **TO_DEAD)
    die(simulated, "a")
    assert queue.letters is not None
    queue.letters.backlog.purge()
    assert left(queue) == {"purged": 1}
    die(simulated, "b")
    assert waiting(simulated) == {"there is no queue 'dead'": 1}


def test_deleting_a_queue_takes_its_letters(simulated: SimulatedBroker) -> None:
    queue = simulated.queue("q", **TO_DEAD)
    die(simulated, "a")
    with pytest.raises(PreconditionFailedError, match="not empty"):
        simulated.vhost.delete_queue(queue, if_empty=True)
    answers: list[int] = []
    simulated.vhost.delete_queue(queue, answer=answers.append)
    assert answers == [1]
    assert left(queue) == {"queue_deleted": 1}
    assert not [name for name in simulated.vhost.queues if name.startswith("amq.letters")]
    simulated.queue("dead")
    simulated.queue("q", **TO_DEAD)
    simulated.pass_time(SOON_MS)
    assert simulated.ready("dead") == []
    assert simulated.vhost.router.on_change is None


@pytest.mark.parametrize("ends", ["restart", "crash"])
@pytest.mark.parametrize("name", ["q", "q" * 255])
def test_letters_wait_again_after_a_restart(
    simulated: SimulatedBroker, ends: str, name: str
) -> None:
    simulated.queue(name, **TO_DEAD)
    die(simulated, "a", queue=name, delivery_mode=2)
    getattr(simulated, ends)()
    simulated.settle()
    assert Client(simulated).get(name) is None
    assert waiting(simulated, name) == {"there is no queue 'dead'": 1}
    simulated.queue("dead")
    simulated.pass_time(SOON_MS)
    assert deaths(simulated) == [("rejected", name, 1)]


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_keeps_its_letters(simulated: SimulatedBroker, *, commits: bool) -> None:
    queue = simulated.queue("q", **TO_DEAD)
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    client.channel.select_transactions()
    assert client.get("q") == "a"
    client.reject("a")
    if commits:
        client.channel.commit()
    else:
        client.channel.rollback()
    simulated.settle()
    assert queue.letter_count == commits
    assert left(queue) == {}
    simulated.queue("dead")
    simulated.pass_time(SOON_MS)
    assert simulated.ready("dead") == ["a"] * commits


def test_a_letter_stays_in_its_place_while_the_disk_is_full(simulated: SimulatedBroker) -> None:
    queue = simulated.queue("q", **TO_DEAD)
    simulated.queue("dead")
    client = Client(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    assert client.get("q") == "a"
    simulated.fill_disk()
    client.reject("a")
    simulated.settle()
    assert (queue.ready_count, queue.letter_count) == (1, 0)
    simulated.free_disk()
    reject(simulated, client, "q")
    assert simulated.ready("dead") == ["a"]


def test_letters_wait_for_a_disk_with_room(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **TO_DEAD)
    die(simulated, "a")
    simulated.fill_disk()
    simulated.queue("dead")
    simulated.pass_time(SOON_MS)
    assert waiting(simulated) == {"the disk is full": 1}
    simulated.free_disk()
    simulated.pass_time(ROOM_MS)
    assert simulated.ready("dead") == ["a"]


def test_a_target_that_has_failed_holds_them_up(simulated: SimulatedBroker) -> None:
    simulated.queue("q", **TO_DEAD)
    simulated.queue("dead").set_aside(ValueError("a fault"))
    die(simulated, "a")
    assert waiting(simulated) == {"queue 'dead' has failed": 1}
    simulated.restart()
    simulated.settle()
    assert simulated.ready("dead") == ["a"]


def test_letters_that_cannot_be_kept_stay_in_the_queue(simulated: SimulatedBroker) -> None:
    queue = simulated.queue("q", message_ttl=100, **TO_DEAD)
    die(simulated, "a")
    assert queue.letters is not None
    queue.letters.set_aside(ValueError("a fault"))
    die(simulated, "b")
    assert simulated.ready("q") == ["b"]
    simulated.pass_time(100)
    assert simulated.ready("q") == ["b"]


def test_nothing_is_asked_for_ever(simulated: SimulatedBroker) -> None:
    """A letter that waits for a route has no timer, and a change is noticed once for many."""
    simulated.queue("q", **TO_DEAD)
    die(simulated, "a")
    assert simulated.services.timers.next_ms == 0
    for number in range(3):
        simulated.queue(f"other{number}")
    simulated.pass_time(SOON_MS)
    assert simulated.services.timers.next_ms == 0


def test_many_letters_are_looked_at_in_turns() -> None:
    simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(round_budget=100))
    queue = simulated.queue("q", message_ttl=10, **KEPT)
    simulated.exchange("dlx", "direct")
    bodies = [f"{number}" for number in range(300)]
    Client(simulated).publish("", "q", *bodies)
    simulated.settle()
    simulated.pass_time(10)
    assert waiting(simulated) == {"exchange 'dlx' leads to no queue": 300}
    simulated.queue("dead")
    simulated.bind("dlx", "dead", "q")
    simulated.clock.advance(SOON_MS)
    simulated.services.run_timers()
    simulated.broker.pumping.pump()
    simulated.store.sync()
    assert 0 < queue.letter_count < 300
    simulated.settle()
    assert simulated.ready("dead") == bodies


def test_a_change_while_letters_are_looked_at_is_not_missed() -> None:
    simulated = SimulatedBroker(limits=BROKER_LIMITS._replace(round_budget=100))
    simulated.queue("q", message_ttl=10, **KEPT)
    simulated.exchange("dlx", "headers")  # so that each letter is looked at
    Client(simulated).publish("", "q", *[f"{number}" for number in range(300)])
    simulated.settle()
    simulated.pass_time(10)
    simulated.queue("dead")
    simulated.clock.advance(SOON_MS)
    simulated.services.run_timers()
    simulated.broker.pumping.pump()
    simulated.bind("dlx", "dead", **{"x-match": "all"})
    simulated.clock.advance(SOON_MS)
    simulated.services.run_timers()
    simulated.settle()
    simulated.pass_time(ROOM_MS)
    assert simulated.vhost.queue("dead").ready_count == 300


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("target", ["there", "deleted"])
def test_a_prepared_branch_keeps_its_letters(
    simulated: SimulatedBroker, restarts: int, target: str
) -> None:
    simulated.queue("q", **TO_DEAD)
    simulated.queue("dead")
    client = BranchClient(simulated)
    client.publish("", "q", "a")
    simulated.settle()
    client.start()
    assert client.get("q") == "a"
    client.reject("a")
    client.end()
    client.prepare()
    simulated.settle()
    assert waiting(simulated) == {}
    if target == "deleted":
        simulated.vhost.delete_queue(simulated.vhost.queue("dead"))
    for _ in range(restarts):
        simulated.crash()
        simulated.settle()
    BranchClient(simulated).commit()
    simulated.settle()
    if target == "deleted":
        assert waiting(simulated) == {"there is no queue 'dead'": 1}
        simulated.queue("dead")
        simulated.pass_time(SOON_MS)
    assert deaths(simulated) == [("rejected", "q", 1)]


def test_letters_have_no_priority_but_go_on_with_it(simulated: SimulatedBroker) -> None:
    simulated.queue("q", max_priority=5, **TO_DEAD)
    for body, priority in (("a", 1), ("b", 5)):
        die(simulated, body, priority=priority)
    simulated.queue("dead", max_priority=5)
    simulated.pass_time(SOON_MS)
    assert simulated.ready("dead") == ["b", "a"]


def test_what_a_full_queue_refuses_goes_now_or_is_refused(simulated: SimulatedBroker) -> None:
    queue = simulated.queue("q", max_length=0, **{**TO_DEAD, "overflow": "reject-publish-dlx"})
    client = Client(simulated)
    client.channel.select_confirms()
    client.publish("", "q", "a")
    simulated.settle()
    assert queue.letters is None
    assert client.told == ["refused 1"]


def test_an_exclusive_queue_takes_its_letters_with_it(simulated: SimulatedBroker) -> None:
    owner = object()
    arguments = {f"x-{key.replace('_', '-')}": value for key, value in TO_DEAD.items()}
    queue = simulated.vhost.declare_queue(
        "q",
        durable=False,
        exclusive=True,
        auto_delete=False,
        arguments=arguments,
        connection=owner,
    )
    die(simulated, "a")
    assert queue.letter_count == 1
    simulated.vhost.owned_queues.end(owner)
    simulated.settle()
    assert not [name for name in simulated.vhost.queues if name.startswith("amq.letters")]
    assert left(queue) == {"owner_gone": 1}


@pytest.mark.parametrize("other", ["at-most-once", None])
def test_a_redeclaration_has_to_agree(simulated: SimulatedBroker, other: str | None) -> None:
    simulated.queue("q", **KEPT)
    simulated.queue("q", **KEPT)
    arguments = {**KEPT, "dead_letter_strategy": other}
    if other is None:
        del arguments["dead_letter_strategy"]
    with pytest.raises(PreconditionFailedError, match="inequivalent arg 'x-dead-letter-strategy'"):
        simulated.queue("q", **arguments)
