"""A large message that is only on disk: others have their turn while it is read."""

from typing import Any

import pytest

from amqpstore.format.limits import StoreLimits
from amqpstore_server.broker.channels.gets import Gets
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.queues.waiting import Fetched
from amqpstore_tools.simulation.memory_files import MemoryFile
from tests.simulated_broker import OPTIONS, SimulatedBroker, ack_until, reject_until
from tests.unit.broker.simulated import Client

LARGE = "large " * 2000
CHUNKS = 12
LIMITS = StoreLimits(table_step_bytes=500, read_ahead_bytes=1000, read_chunk_bytes=1000)


@pytest.fixture
def simulated() -> SimulatedBroker:
    """Queue "q" with a large message that is not in memory, and queue "other"."""
    simulated = SimulatedBroker(options=OPTIONS._replace(memory_bytes=0, limits=LIMITS))
    simulated.queue("q")
    simulated.queue("other")
    Client(simulated).publish("", "q", LARGE, "after", delivery_mode=2)
    simulated.settle()
    simulated.store.upkeep.housekeep()
    return simulated


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts of bytes read from files: each read is added to the last number of the list."""
    found = [0]

    def counted(self: MemoryFile, offset: int, size: int) -> bytes:
        content = read_from(self, offset, size)
        found[-1] += len(content)
        return content

    read_from = MemoryFile.read
    monkeypatch.setattr(MemoryFile, "read", counted)
    return found


def test_others_are_served_between_its_parts(simulated: SimulatedBroker) -> None:
    client, other = Client(simulated), Client(simulated)
    client.consume("q", "c")
    other.consume("other", "o")
    for turn in range(CHUNKS):
        other.publish("", "other", str(turn))
        simulated.broker.pumping.pump()
        assert other.bodies("o")[-1] == str(turn)
        assert client.bodies("c") == []
    simulated.settle()
    assert client.bodies("c") == [LARGE, "after"]


def test_one_part_is_read_in_a_turn_however_many_consumers_wait(
    simulated: SimulatedBroker,
) -> None:
    clients = [Client(simulated) for _ in range(20)]
    for number, client in enumerate(clients):
        client.consume("q", f"c{number}")
    for _ in range(CHUNKS):
        simulated.broker.pumping.pump()
        assert not any(client.got for client in clients)
    simulated.settle()
    got = [body for number, client in enumerate(clients) for body in client.bodies(f"c{number}")]
    assert sorted(got) == ["after", LARGE]


def test_a_get_has_it_at_once(simulated: SimulatedBroker) -> None:
    client = Client(simulated)
    assert [client.get("q"), client.get("q")] == [LARGE, "after"]


@pytest.mark.parametrize("kind", ["history", "dead letters"])
def test_one_that_moves_to_another_queue_is_read_in_parts(
    simulated: SimulatedBroker, kind: str
) -> None:
    if kind == "history":
        queue = simulated.queue("from", history_length=10)
        to = "amq.consumed.from"
    else:
        queue = simulated.queue("from", dead_letter_exchange="", dead_letter_routing_key="other")
        to = "other"
    client, other = Client(simulated), Client(simulated)
    client.publish("", "from", LARGE)
    client.consume("from", "c")
    simulated.settle()
    simulated.store.upkeep.housekeep()
    if kind == "history":
        ack_until(client.channel, 0)
    else:
        reject_until(client.channel, 0, requeue=False)
    for turn in range(CHUNKS - 1):
        assert queue.pending_moves
        other.publish("", "q", str(turn))
        simulated.broker.pumping.pump()
    simulated.settle()
    assert not queue.pending_moves
    assert simulated.ready(to) == [LARGE]


@pytest.mark.parametrize("limit", ["message_ttl", "max_length"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_one_that_leaves_by_a_limit_is_read_in_parts(
    simulated: SimulatedBroker, read: list[int], limit: str, *, goes_on: bool
) -> None:
    arguments: dict[str, Any] = (
        {"dead_letter_exchange": "", "dead_letter_routing_key": "other"}
        if goes_on
        else {"max_length_bytes": 2 * len(LARGE)}
    )
    arguments |= {"message_ttl": 1000} if limit == "message_ttl" else {"max_length": 1}
    queue = simulated.queue("from", **arguments)
    client = Client(simulated)
    client.publish("", "from", LARGE)
    simulated.settle()
    simulated.store.upkeep.housekeep()
    read[:] = [0]
    if limit == "message_ttl":
        simulated.clock.advance(1000)
        simulated.services.run_timers()
    else:
        client.publish("", "from", "new")
    while simulated.broker.pumping.has_work:
        read.append(0)
        simulated.broker.pumping.pump()
        simulated.store.sync()
    assert max(read) < len(LARGE) / 2
    assert sum(read) >= len(LARGE)
    assert simulated.ready("other") == ([LARGE] if goes_on else [])
    assert simulated.ready("from") == ([] if limit == "message_ttl" else ["new"])
    assert queue.backlog.ready_bytes == (0 if goes_on or limit == "message_ttl" else 3)


def test_a_get_that_waits_in_line_has_it_in_parts(
    simulated: SimulatedBroker, read: list[int]
) -> None:
    answers: list[str] = []

    def answer(_queue: Queue, fetched: Fetched) -> None:
        assert fetched is not None
        answers.extend(message.body.decode() for message in fetched[1].messages or ())

    gets = Gets(Client(simulated).channel, answer)
    consumer = Client(simulated)
    consumer.consume("q", "c", prefetch=1)
    for wait_ms in (1000, 0):
        assert gets.get(simulated.vhost.queue("q"), no_ack=True, wait_ms=wait_ms)
    while simulated.broker.pumping.has_work:
        read.append(0)
        simulated.broker.pumping.pump()
    assert answers == [LARGE, "after"]
    assert consumer.bodies("c") == []
    assert max(read) < len(LARGE) / 2
