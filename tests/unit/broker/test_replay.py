"""Replays: which messages of a history are copied, where to, and what the publisher is told."""

from collections.abc import Iterator
from typing import Any

import pytest

from amqpstore import Message
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError
from amqpstore_server.broker.exchanges.replay import REPLAY_EXCHANGE
from amqpstore_server.broker.work.limits import BrokerLimits
from amqpstore_server.protocol.field_table import Timestamp
from tests.simulated_broker import START_MS, SimulatedBroker
from tests.unit.broker.simulated import Client, labelled

HISTORY = "amq.consumed.q"


@pytest.fixture
def simulated() -> SimulatedBroker:
    """A queue whose history has a to e, one each 10 ms, and a queue to browse it in."""
    made = SimulatedBroker()
    made.queue("q", history_length=100)
    made.queue("browse", durable=False)
    made.queue("plain")
    client = Client(made)
    for body in "abcde":
        client.publish("", "q", body, message_id=f"id {body}", headers={"mine": body})
        made.settle()
        client.get("q")
        client.ack(body)
        made.pass_time(10)
    return made


@pytest.fixture
def client(simulated: SimulatedBroker) -> Client:
    made = Client(simulated)
    made.channel.select_confirms()
    return made


def ask(client: Client, name: str = "q", *, mandatory: bool = False, **headers: Any) -> None:
    """Ask for a replay: each `_` in the names of headers is a `-`."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    parsed, messages = labelled(REPLAY_EXCHANGE, name, "body", headers=named)
    client.channel.publish(parsed, messages, Flags(mandatory=mandatory))
    client.channel.confirm_published()


def test_all_of_it_into_the_queue_itself(simulated: SimulatedBroker, client: Client) -> None:
    client.publish("", "q", "new")
    ask(client)
    simulated.settle()
    assert simulated.ready("q") == ["new", *"abcde"]
    assert simulated.headers("q")[1:] == [
        {"mine": body, "x-consumed-at": START_MS + 10 * place, "x-replayed": True}
        for place, body in enumerate("abcde")
    ]
    assert client.told == ["confirmed 1", "confirmed 2"]
    assert simulated.ready(HISTORY) == [*"abcde"]
    envelope = simulated.messages("q")[1].envelope
    assert (envelope.exchange, envelope.routing_key) == ("", "q")


def test_it_is_confirmed_once_it_is_durable(simulated: SimulatedBroker, client: Client) -> None:
    ask(client)
    assert client.told == []
    assert simulated.ready("q") == []
    simulated.store.sync()
    assert client.told == ["confirmed 1"]
    simulated.restart()
    assert simulated.ready("q") == [*"abcde"]


def test_into_another_queue_to_browse(simulated: SimulatedBroker, client: Client) -> None:
    ask(client, x_replay_to="browse")
    simulated.settle()
    assert simulated.ready("browse") == [*"abcde"]
    assert simulated.ready("q") == []


@pytest.mark.parametrize(
    ("headers", "bodies"),
    [
        ({"x_from": START_MS + 10}, "bcde"),
        ({"x_from": START_MS + 11}, "cde"),
        ({"x_to": START_MS + 10}, "a"),
        ({"x_to": START_MS + 11}, "ab"),
        ({"x_from": START_MS + 10, "x_to": START_MS + 30}, "bc"),
        ({"x_from": START_MS + 30, "x_to": START_MS + 10}, ""),
        ({"x_from": 0, "x_to": 0}, ""),
        ({"x_limit": 2}, "ab"),
        ({"x_limit": 0}, ""),
        ({"x_limit": 99}, "abcde"),
        ({"x_from": START_MS + 20, "x_limit": 1}, "c"),
        ({"x_message_id": "id d"}, "d"),
        ({"x_message_id": "id"}, ""),
        ({"x_message_id": "id d", "x_to": START_MS + 10}, ""),
        ({"x_message_id": "d"}, ""),
        ({"x_from": Timestamp(START_MS // 1000)}, "abcde"),
        ({"x_to": Timestamp(START_MS // 1000)}, ""),
        ({"x_other": [1]}, "abcde"),
    ],
    ids=str,
)
def test_headers_select(
    simulated: SimulatedBroker, client: Client, headers: dict[str, Any], bodies: str
) -> None:
    ask(client, x_replay_to="browse", **headers)
    simulated.settle()
    assert simulated.ready("browse") == [*bodies]
    assert client.told == ["confirmed 1"]


@pytest.mark.parametrize("name", ["x_from", "x_to", "x_limit"])
@pytest.mark.parametrize("value", [-1, "1", True, 1.5, 1 << 60, [1]])
def test_a_number_that_is_none_is_refused(client: Client, name: str, value: Any) -> None:
    with pytest.raises(PreconditionFailedError, match=name.replace("_", "-")):
        ask(client, **{name: value})


@pytest.mark.parametrize("name", ["x_replay_to", "x_message_id"])
def test_a_text_that_is_none_is_refused(client: Client, name: str) -> None:
    with pytest.raises(PreconditionFailedError, match=name.replace("_", "-")):
        ask(client, **{name: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("nowhere", {}),
        ("plain", {}),
        (HISTORY, {}),
        ("q", {"x_replay_to": "nowhere"}),
        ("q", {"x_replay_to": HISTORY}),
    ],
)
def test_where_there_is_no_history_or_no_queue_it_is_unroutable(
    simulated: SimulatedBroker, client: Client, name: str, headers: dict[str, Any]
) -> None:
    ask(client, name, mandatory=True, **headers)
    ask(client, name, **headers)
    simulated.settle()
    assert client.told[0] == "returned body NO_ROUTE"
    assert client.told[-1].startswith("confirmed 2")
    assert client.told[1:-1] in ([], ["confirmed 1"])
    assert simulated.ready(HISTORY) == [*"abcde"]


def test_an_empty_selection_is_routed(simulated: SimulatedBroker, client: Client) -> None:
    ask(client, mandatory=True, x_limit=0)
    simulated.settle()
    assert client.told == ["confirmed 1"]


def test_copies_that_are_consumed_are_history_again(
    simulated: SimulatedBroker, client: Client
) -> None:
    ask(client, x_limit=1)
    simulated.settle()
    client.get("q")
    client.ack("a")
    simulated.settle()
    assert simulated.ready(HISTORY) == [*"abcde", "a"]
    assert simulated.headers(HISTORY)[-1] == {
        "mine": "a",
        "x-consumed-at": simulated.now_ms,
        "x-replayed": True,
    }


def test_what_is_due_is_not_copied(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("brief", history_ttl=100)
    client.publish("", "brief", "a")
    simulated.settle()
    client.get("brief")
    client.ack("a")
    simulated.settle()
    simulated.clock.advance(100)
    ask(client, "brief", x_replay_to="browse")
    simulated.settle()
    assert simulated.ready("browse") == []


def test_a_full_queue_refuses_all_of_it(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("small", max_length=3, overflow="reject-publish")
    ask(client, x_replay_to="small")
    simulated.settle()
    assert client.told == ["refused 1"]
    assert simulated.ready("small") == []
    ask(client, x_replay_to="small", x_limit=3)
    simulated.settle()
    assert simulated.ready("small") == [*"abc"]


def test_a_queue_that_drops_keeps_the_last(simulated: SimulatedBroker, client: Client) -> None:
    simulated.queue("last", max_length=2)
    ask(client, x_replay_to="last")
    simulated.settle()
    assert simulated.ready("last") == ["d", "e"]


def test_more_than_its_bounds_is_refused_and_says_how_to_go_on(
    simulated: SimulatedBroker, client: Client
) -> None:
    """A message counts as 256 bytes more than its body and properties."""
    simulated.services.limits = BrokerLimits(max_replay_bytes=1200)
    with pytest.raises(PreconditionFailedError, match=f"x-to={START_MS + 30}"):
        ask(client, x_replay_to="browse")
    simulated.settle()
    assert simulated.ready("browse") == []
    ask(client, x_replay_to="browse", x_to=START_MS + 30)
    ask(client, x_replay_to="browse", x_from=START_MS + 30)
    simulated.settle()
    assert simulated.ready("browse") == [*"abcde"]


def test_it_is_no_part_of_a_transaction(simulated: SimulatedBroker) -> None:
    client = Client(simulated)
    client.channel.select_transactions()
    with pytest.raises(PreconditionFailedError, match="part of a transaction"):
        ask(client)


def test_a_full_disk_copies_nothing(simulated: SimulatedBroker, client: Client) -> None:
    simulated.fill_disk()
    with pytest.raises(Exception, match="disk"):
        ask(client)
    simulated.free_disk()
    simulated.settle()
    assert simulated.ready("q") == []


def test_requests_that_are_alike_are_each_done(simulated: SimulatedBroker, client: Client) -> None:
    first, messages = labelled(REPLAY_EXCHANGE, "q", "1", headers={"x-limit": 1})
    other, more = labelled(REPLAY_EXCHANGE, "q", "2", headers={"x-limit": 2})
    client.channel.publish(first, [*messages, *more, Message(other, b"3")], Flags())
    client.channel.confirm_published()
    simulated.settle()
    assert simulated.ready("q") == [*"aabab"]
    assert client.told == ["confirmed 3 and before"]


def test_the_exchange_routes_nothing(simulated: SimulatedBroker, client: Client) -> None:
    vhost = simulated.vhost
    with pytest.raises(AccessRefusedError, match="nothing can be bound"):
        vhost.bindings.bind(vhost.queue("plain"), REPLAY_EXCHANGE, "q", {})
    vhost.bindings.unbind(vhost.queue("plain"), REPLAY_EXCHANGE, "q", {})
    with pytest.raises(PreconditionFailedError, match="alone is"):
        simulated.exchange("mine", "x-replay")
    with pytest.raises(AccessRefusedError):
        vhost.exchange_definitions.delete(REPLAY_EXCHANGE, if_unused=False)
    # A message that comes by another way asks for nothing.
    simulated.exchange("all", "fanout")
    vhost.bindings.bind(vhost.exchange(REPLAY_EXCHANGE), "all", "", {})
    client.publish("all", "q", "x")
    simulated.settle()
    assert simulated.ready("q") == []


def test_a_large_history_is_copied_whole_and_in_order(
    simulated: SimulatedBroker, client: Client
) -> None:
    """A history of several MiB, in memory, on disk and in index files, with transient messages."""
    simulated.queue("large", history_length=1 << 20)
    bodies = [f"{number:05} ".ljust(1000, "x") for number in range(5000)]
    client.consume("large", "c", no_ack=True)
    for place in range(0, len(bodies), 100):
        mode = 1 if place % 1000 == 500 else 2
        client.publish("", "large", *bodies[place : place + 100], delivery_mode=mode)
        simulated.settle()
        if place % 1500 == 0:
            simulated.store.upkeep.checkpoint()
    ask(client, "large", x_replay_to="browse")
    simulated.settle()
    assert simulated.ready("browse") == bodies
    assert simulated.ready("amq.consumed.large") == bodies
    simulated.vhost.queue("browse").backlog.purge()
    simulated.restart()
    simulated.queue("browse", durable=False)
    ask(Client(simulated), "large", x_replay_to="browse")
    simulated.settle()
    kept = [body for body in bodies if int(body[:5]) % 1000 // 100 != 5]
    assert simulated.ready("browse") == kept


def test_many_in_a_row_wait_for_the_disk(simulated: SimulatedBroker, client: Client) -> None:
    """Moves that are not durable yet take memory: past the limit, the next replay flushes them."""
    simulated.services.limits = BrokerLimits(max_replay_bytes=2500)
    pending = []
    for _ in range(20):
        ask(client)
        pending.append(simulated.store.log.pending_bytes)
    assert max(pending) < 5000
    simulated.settle()
    assert simulated.vhost.queue("q").ready_count == 100


@pytest.fixture
def slowly(simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch) -> SimulatedBroker:
    """Each message of a history is a part of its own."""
    monkeypatch.setattr("amqpstore.queues.stored_runs._MAX_BROWSED", 1)
    return simulated


def in_chunks(client: Client, name: str = "q") -> Iterator[None]:
    """A replay into `browse`, part by part."""
    _, messages = labelled(REPLAY_EXCHANGE, name, "body", headers={"x-replay-to": "browse"})
    return client.channel.replay(messages, Flags())


def test_others_have_their_turn_while_a_history_is_read(
    slowly: SimulatedBroker, client: Client
) -> None:
    replay = in_chunks(client)
    next(replay)
    client.publish("", "plain", "between")
    slowly.settle()
    assert slowly.ready("plain") == ["between"]
    assert slowly.ready("browse") == [], "all copies come together"
    assert len(list(replay)) == 4
    client.channel.confirm_published()
    slowly.settle()
    assert slowly.ready("browse") == list("abcde")
    assert sorted(client.told) == ["confirmed 1", "confirmed 2"]


def test_what_is_consumed_while_a_history_is_read_is_not_copied(
    slowly: SimulatedBroker, client: Client
) -> None:
    replay = in_chunks(client)
    next(replay)
    client.publish("", "q", "late")
    slowly.settle()
    client.get("q")
    client.ack("late")
    slowly.settle()
    list(replay)
    slowly.settle()
    assert slowly.ready("browse") == list("abcde")
    assert slowly.ready(HISTORY) == [*"abcde", "late"]


def test_what_leaves_a_history_before_it_is_read_is_not_copied(
    slowly: SimulatedBroker, client: Client
) -> None:
    replay = in_chunks(client)
    next(replay)
    slowly.vhost.queue(HISTORY).backlog.purge()
    list(replay)
    slowly.settle()
    assert slowly.ready("browse") == ["a"]


def test_a_queue_that_is_deleted_while_it_is_read_is_not_replayed(
    slowly: SimulatedBroker, client: Client
) -> None:
    replay = in_chunks(client)
    next(replay)
    slowly.vhost.delete_queue(slowly.vhost.queue("q"))
    list(replay)
    slowly.settle()
    assert slowly.ready("browse") == []
