"""The provenance of a message: where it came from, and what became of it, as the log says."""

import json
import time
from typing import Any

import pytest

from amqpstore import Options
from amqpstore.format.records import OperationKind
from amqpstore_server.administration.changes import AdministrationError, MissingError
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.provenance import (
    MAX_READ_S,
    MAX_READS,
    ReadingPace,
    of_message,
    of_position,
)
from amqpstore_server.administration.work import Work, done
from amqpstore_server.broker.channels.firehose import Origin
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.logins.users import Users
from amqpstore_server.reports.message_trail import UNKNOWN, trail_answer
from tests.simulated_broker import DIRECTORY, START_MS, SimulatedBroker
from tests.unit.broker.simulated import Client


class NotingBroker(SimulatedBroker):
    """A broker that notes its clients."""

    def make_services(self) -> BrokerServices:
        services = super().make_services()
        services.trails = self.store.provenance.client_trails(max_files=2)
        return services


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = NotingBroker()
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="morgue")
    simulated.queue("morgue")
    return simulated


def administration(simulated: SimulatedBroker) -> Administration:
    return Administration(simulated.broker, Users(simulated.store))


def told(work: Work[dict[str, Any]]) -> dict[str, Any]:
    answer = done(work)
    json.dumps(answer)
    return answer


def at(simulated: SimulatedBroker, queue: str, position: str) -> dict[str, Any]:
    simulated.settle()
    return told(of_position(administration(simulated), simulated.vhost.queue(queue), position))


def steps(trail: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(step["what"], step["queue"], step["sequence"]) for step in trail["steps"]]


def test_a_message_that_waits(simulated: SimulatedBroker) -> None:
    simulated.bind("amq.topic", "q", "a.*")
    simulated.bind("amq.topic", "morgue", "#")
    client = Client(simulated)
    client.publish("amq.topic", "a.b", "one", message_id="m")
    answer = at(simulated, "q", "1")
    (trail,) = answer["trail"]
    assert (trail["exchange"], trail["routing_key"], trail["body_bytes"]) == ("amq.topic", "a.b", 3)
    assert trail["properties"]["message_id"] == "m"
    assert trail["published_ms"] == START_MS
    assert steps(trail) == [("enqueued", "q", 1), ("enqueued", "morgue", 1)]
    assert [place["queue"] for place in trail["now_in"]] == ["q", "morgue"]
    assert {queue["name"] for queue in trail["route_now"]["queues"]} == {"q", "morgue"}
    assert told(of_message(administration(simulated), trail["id"]))["trail"] == answer["trail"]


def test_deliveries_and_the_way_to_the_dead_letters(simulated: SimulatedBroker) -> None:
    client = Client(simulated)
    for body in ("same", "same", "other"):
        client.publish("", "q", body)
        simulated.settle()
    client.get("q")
    simulated.settle()
    client.requeue("same")
    simulated.settle()
    assert client.get("q") == "same"
    simulated.settle()
    simulated.clock.advance(500)
    client.reject("same")
    simulated.settle()
    answer = at(simulated, "q", "1")
    first, second = answer["trail"]
    assert steps(first) == [
        ("enqueued", "q", 1),
        ("delivered", "q", 1),
        ("delivered", "q", 1),
        ("left", "q", 1),
    ]
    assert [step.get("deliveries") for step in first["steps"]] == [None, 1, 2, None]
    assert first["now_in"] == []
    assert first["became"] == [second["id"]]
    assert second["came_from"] == first["id"]
    assert steps(second) == [("enqueued", "morgue", 1)]
    assert second["published_ms"] == START_MS + 500
    (death,) = second["deaths"]
    assert (death["queue"], death["reason"]) == ("q", "rejected")
    assert steps(at(simulated, "q", "2")["trail"][0]) == [("enqueued", "q", 2)]


def test_a_dead_letter_says_what_it_was_before(simulated: SimulatedBroker) -> None:
    """Asked by its place in the last queue: the log is searched backwards, twice here."""
    simulated.queue("first", dead_letter_exchange="", dead_letter_routing_key="q")
    ann, bob = client(simulated, "ann"), client(simulated, "bob")
    for body in ("before", "letter", "before"):
        ann.publish("", "first", body)
        simulated.settle()
    simulated.clock.advance(500)
    for queue in ("first", "q"):
        if queue == "first":
            assert bob.get(queue) == "before"
        assert bob.get(queue) == "letter"
        simulated.settle()
        ann.publish("", "morgue", "another")
        bob.reject("letter")
        simulated.settle()
    (place,) = [
        one for one in range(1, 4) if at(simulated, "morgue", str(one))["trail"][0]["came_from"]
    ]
    answer = at(simulated, "morgue", str(place))
    dead, second, first = answer["trail"]
    assert (dead["came_from"], second["came_from"], first["came_from"]) == (
        second["id"],
        first["id"],
        None,
    )
    assert (first["became"], second["became"]) == ([second["id"]], [dead["id"]])
    assert steps(first) == [
        ("enqueued", "first", 2),
        ("delivered", "first", 2),
        ("left", "first", 2),
    ]
    assert [place["queue"] for place in dead["now_in"]] == ["morgue"]
    assert [trail["steps"][-1].get("reason") for trail in answer["trail"]] == [
        *(None, "rejected", "rejected")
    ]
    assert clients(answer) == [
        ("published", "ann", "first", None),
        ("delivered", "bob", "first", None),
        ("rejected", "bob", "first", None),
        ("delivered", "bob", "q", None),
        ("rejected", "bob", "q", None),
    ]
    assert told(of_message(administration(simulated), dead["id"])) == answer


def test_why_a_message_left(simulated: SimulatedBroker) -> None:
    ann = client(simulated, "ann")
    ann.publish("", "q", "acked")
    ann.publish("", "q", "expired", expiration="10")
    simulated.settle()
    assert ann.get("q") == "acked"
    ann.ack("acked")
    simulated.settle()
    simulated.pass_time(20)

    def reason(position: str) -> Any:
        left = at(simulated, "q", position)["trail"][0]["steps"][-1]
        assert left["what"] == "left"
        return left["reason"]

    assert [reason("1"), reason("2")] == ["acked", "expired"]


def test_who_has_got_a_message_and_has_not_acked_it(simulated: SimulatedBroker) -> None:
    getter, consumer = Client(simulated), Client(simulated)
    getter.channel.origin = Origin("127.0.0.1:1 -> 127.0.0.1:5672", 3, "ann")
    consumer.channel.origin = Origin("127.0.0.1:2 -> 127.0.0.1:5672", 4, "bob")
    for body in ("one", "two", "three"):
        getter.publish("", "q", body)
        simulated.settle()

    def holder(position: str) -> Any:
        (place,) = at(simulated, "q", position)["trail"][0]["now_in"]
        return place["held_by"]

    assert holder("1") is None
    assert getter.get("q") == "one"
    consumer.consume("q", "worker", prefetch=1)
    assert holder("1") == {
        "connection": "127.0.0.1:1 -> 127.0.0.1:5672",
        "channel": 3,
        "user": "ann",
        "consumer_tag": None,
    }
    assert (holder("2")["user"], holder("2")["consumer_tag"]) == ("bob", "worker")
    assert holder("3") is None
    getter.requeue("one")
    assert holder("1") is None


def clients(answer: dict[str, Any]) -> list[tuple[str, str, str, str | None]]:
    return [
        (one["what"], one["user"], one["queue"], one["consumer_tag"]) for one in answer["clients"]
    ]


def client(simulated: SimulatedBroker, user: str) -> Client:
    return Client(simulated, Origin(f"{user}'s connection", 1, user))


def test_who_published_a_message_and_who_got_it(simulated: SimulatedBroker) -> None:
    """The answer is the same once the message is acked and its batch is gone from the log."""
    ann, bob, carl = (client(simulated, user) for user in ("ann", "bob", "carl"))
    ann.publish("", "q", "first", "second")
    bob.publish("", "q", "third")
    bob.consume("q", "worker", prefetch=2)
    simulated.settle()
    bob.requeue("second")
    bob.channel.close()
    simulated.clock.advance(1000)
    assert carl.get("q") == "first"
    assert carl.get("q") == "second"
    carl.ack("first")
    carl.reject("second")
    assert at(simulated, "q", "1")["clients"][-1] == {
        "at_ms": START_MS + 1000,
        "what": "acked",
        "connection": "carl's connection",
        "channel": 1,
        "user": "carl",
        "consumer_tag": None,
        "vhost": "/",
        "queue": "q",
        "queue_id": 1,
        "sequence": 1,
    }
    assert clients(at(simulated, "q", "1")) == [
        ("published", "ann", "q", None),
        ("delivered", "bob", "q", "worker"),
        ("requeued", "bob", "q", "worker"),
        ("delivered", "carl", "q", None),
        ("acked", "carl", "q", None),
    ]
    of_second = [
        ("published", "ann", "q", None),
        ("delivered", "bob", "q", "worker"),
        ("requeued", "bob", "q", "worker"),
        ("delivered", "carl", "q", None),
        ("rejected", "carl", "q", None),
    ]
    assert clients(at(simulated, "q", "2")) == of_second
    assert clients(at(simulated, "q", "3")) == [("published", "bob", "q", None)]
    dead = simulated.vhost.queue("morgue").priorities.lowest
    assert dead.ready_count == 1
    assert client(simulated, "dora").get("morgue") == "second"
    assert clients(at(simulated, "q", "2")) == [*of_second, ("delivered", "dora", "morgue", None)]


def test_who_published_what_in_a_transaction(simulated: SimulatedBroker) -> None:
    ann, bob = client(simulated, "ann"), client(simulated, "bob")
    bob.publish("", "morgue", "before")
    bob.publish("", "q", "rejected")
    simulated.settle()
    assert ann.get("q") == "rejected"
    ann.channel.select_transactions()
    ann.publish("", "morgue", "undone")
    ann.channel.rollback()
    ann.publish("", "morgue", "one")
    ann.publish("", "morgue", "transient", delivery_mode=1)
    ann.publish("", "morgue", "two", expiration="60000")
    ann.reject("rejected")
    ann.publish("", "q", "three")
    ann.channel.commit()
    bob.publish("", "morgue", "after")
    simulated.settle()
    who = [clients(at(simulated, "morgue", str(position)))[:1] for position in range(1, 7)]
    assert [one and one[0][:2] for one in who] == [
        ("published", "bob"),
        ("published", "ann"),
        [],
        ("published", "ann"),
        ("published", "bob"),
        ("published", "bob"),
    ]
    assert clients(at(simulated, "q", "2")) == [("published", "ann", "q", None)]
    assert clients(at(simulated, "q", "1"))[-1] == ("rejected", "ann", "q", None)


def test_nothing_is_noted_of_what_does_not_survive(simulated: SimulatedBroker) -> None:
    simulated.queue("short", durable=False)
    simulated.bind("amq.fanout", "short")
    simulated.bind("amq.fanout", "q")
    ann = client(simulated, "ann")
    ann.publish("", "q", "transient", delivery_mode=1)
    ann.publish("amq.fanout", "", "both")
    for queue in ("q", "q", "short"):
        assert ann.get(queue)
    assert clients(at(simulated, "q", "1")) == []
    assert [what for what, _, queue, _ in clients(at(simulated, "q", "2")) if queue == "q"] == [
        "published",
        "delivered",
    ]
    assert clients(at(simulated, "short", "1")) == []


def test_who_has_got_a_message_of_another_priority_is_not_meant(simulated: SimulatedBroker) -> None:
    simulated.queue("p", max_priority=2)
    client = Client(simulated)
    client.publish("", "p", "low", priority=1)
    client.publish("", "p", "high", priority=2)
    simulated.settle()
    assert client.get("p") == "high"
    held = [
        at(simulated, "p", position)["trail"][0]["now_in"][0]["held_by"] is not None
        for position in ("2:1", "1:1")
    ]
    assert held == [True, False]


def test_what_was_purged_or_acked(simulated: SimulatedBroker) -> None:
    client = Client(simulated)
    client.publish("", "q", "one")
    client.publish("", "q", "two")
    client.get("q")
    simulated.settle()
    client.ack("one")
    simulated.vhost.queue("q").backlog.purge()
    (trail,) = at(simulated, "q", "1")["trail"]
    assert [what for what, _, _ in steps(trail)][-1] == "left"
    assert trail["became"] == []
    (trail,) = at(simulated, "q", "2")["trail"]
    assert [what for what, _, _ in steps(trail)] == ["enqueued", "removed"]


def test_a_delayed_message_is_followed(simulated: SimulatedBroker) -> None:
    simulated.exchange("late", "x-delayed-message", x_delayed_type="fanout")
    simulated.bind("late", "q")
    Client(simulated).publish("late", "k", "one", headers={"x-delay": 1000})
    simulated.settle()
    simulated.pass_time(1001)
    first, second = told(of_message(administration(simulated), 1))["trail"]
    assert [queue for _, queue, _ in steps(first)] == ["amq.delayed.late", "amq.delayed.late"]
    assert steps(second) == [("enqueued", "q", 1)]


def test_it_is_honest_about_what_is_gone() -> None:
    options = Options(reserve_bytes=0, least_free_bytes=0, segment_bytes=65536)
    simulated = SimulatedBroker(options=options)
    for name in ("q", "other"):
        simulated.queue(name)
    client = Client(simulated)
    client.publish("", "q", "kept")
    for number in range(40):
        client.publish("", "other", "x" * 8000 + str(number))
        simulated.settle()
    simulated.vhost.queue("other").backlog.purge()
    simulated.settle()
    simulated.store.upkeep.checkpoint()
    assert list(simulated.store.upkeep.compact())
    client.get("q")
    simulated.settle()
    answer = at(simulated, "q", "1")
    # Its record was copied; the batch that published it is gone, and the log says which message is
    # at a position only for those that are ready.
    assert answer["trail"] == []
    assert any("the batch is gone" in note for note in answer["notes"])
    client.requeue("kept")
    answer = at(simulated, "q", "1")
    (trail,) = answer["trail"]
    assert (trail["body_bytes"], trail["lsn"], trail["published_ms"]) == (4, None, None)
    assert [place["queue"] for place in trail["now_in"]] == ["q"]
    assert steps(trail) == [("delivered", "q", 1)]
    assert any("no longer in the log" in note for note in answer["notes"])
    answer = told(of_message(administration(simulated), 2))
    (trail,) = answer["trail"]
    assert (trail["steps"], trail["segment"]) == ([], None)
    assert any("its record is gone" in note for note in answer["notes"])


def test_a_batch_that_is_being_written_is_no_damage(simulated: SimulatedBroker) -> None:
    client = Client(simulated)
    for bodies in (("one",), ("two", "of", "them"), ("three", "and", "four")):
        client.publish("", "q", *bodies)
        simulated.settle()
    name = max(simulated.disk.list_directory(f"{DIRECTORY}/segments"))
    path = f"{DIRECTORY}/segments/{name}"
    whole = simulated.disk.content(path).rstrip(b"\0")

    def damaged(content: bytes) -> tuple[int, bool]:
        simulated.disk.replace_in_cache(path, content)
        answer = told(of_message(administration(simulated), 1))
        assert steps(answer["trail"][0]) == [("enqueued", "q", 1)]
        return answer["log"]["damaged"], any("damaged" in note for note in answer["notes"])

    assert damaged(whole) == (0, False)
    assert damaged(whole[:-10]) == (0, False)


def test_a_limit_is_said(simulated: SimulatedBroker) -> None:
    Client(simulated).publish("", "q", "one")
    simulated.settle()
    reader = simulated.store.provenance.reader(lambda *_: False, lambda: True)
    reader._reading.left_bytes = 10
    found = reader.of_message(1)
    assert found.is_cut
    assert found.trails[0].lsn == 0


def test_reading_stops_when_its_time_is_over(simulated: SimulatedBroker) -> None:
    """The answer has what was read by then, and says that there is more."""
    client = Client(simulated)
    for body in ("one", "two"):
        client.publish("", "q", body)
        simulated.settle()
    client.get("q")
    simulated.settle()
    answers = iter([True, False, False])
    reader = simulated.store.provenance.reader(lambda *_: False, lambda: next(answers))
    found = reader.of_message(1)
    assert found.is_cut
    assert [step.kind for step in found.trails[0].steps] == [OperationKind.ENQUEUE]
    answer = trail_answer(found, lambda _id: UNKNOWN, lambda _raw: {})
    assert answer["log"]["is_cut"]
    assert f"at batch {found.last_lsn}: there is more" in " ".join(answer["notes"])
    whole = simulated.store.provenance.reader(lambda *_: False, lambda: True).of_message(1)
    assert not whole.is_cut
    assert len(whole.trails[0].steps) == 2


def test_a_reader_rests_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    rests: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "sleep", rests.append)
    goes_on = ReadingPace()
    answers = []
    for step in range(1300):
        now = 100 + step / 1000 * MAX_READ_S
        answers.append(goes_on())
    assert answers == [True] * 1000 + [False] * 300
    assert len(rests) > 200


def test_what_cannot_be_asked(simulated: SimulatedBroker) -> None:
    queue = simulated.vhost.queue("q")
    with pytest.raises(MissingError, match="never had"):
        done(of_position(administration(simulated), queue, "7"))
    with pytest.raises(MissingError, match="priority 3"):
        done(of_position(administration(simulated), queue, "3:1"))
    with pytest.raises(AdministrationError, match="not the position"):
        done(of_position(administration(simulated), queue, "x"))
    with pytest.raises(AdministrationError, match="not the id"):
        done(of_message(administration(simulated), 0))


def test_few_read_at_a_time(simulated: SimulatedBroker) -> None:
    asked = administration(simulated)
    reading = [of_message(asked, 1) for _ in range(MAX_READS)]
    for work in reading:
        next(work)
    with pytest.raises(AdministrationError, match="try again"):
        done(of_message(asked, 1))
    for work in reading:
        work.close()
    assert told(of_message(asked, 1))["trail"][0]["steps"] == []
