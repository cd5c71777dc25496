"""Confirms: each publish is answered once, and not before what it was promised is so (P1)."""

import random

import pytest

from amqpstore_server.broker.channels.confirms import Flags
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client, labelled


@pytest.fixture
def simulated() -> SimulatedBroker:
    simulated = SimulatedBroker()
    simulated.queue("q")
    simulated.queue("full", max_length=1, overflow="reject-publish")
    return simulated


@pytest.fixture
def client(simulated: SimulatedBroker) -> Client:
    client = Client(simulated)
    client.channel.select_confirms()
    return client


def publish(client: Client, *keys_and_modes: tuple[str, int]) -> None:
    """Publish a message to each queue, in one read of the connection."""
    for key, mode in keys_and_modes:
        client.channel.publish(*labelled("", key, "m", delivery_mode=mode), Flags())
    client.channel.confirm_published()


def answered(client: Client) -> dict[int, str]:
    """Return how each publish was answered, by its tag. None is answered twice."""
    found: dict[int, str] = {}
    for answer in client.told:
        kind, tag, *and_before = answer.split()
        open_tags = [one for one in range(1, int(tag)) if one not in found] if and_before else []
        assert int(tag) not in found
        found |= dict.fromkeys([*open_tags, int(tag)], kind)
    return found


def test_one_that_is_confirmed_at_once_confirms_none_before_it(
    simulated: SimulatedBroker, client: Client
) -> None:
    publish(client, ("q", 2))
    publish(client, ("q", 1), ("q", 1))
    assert client.told == ["confirmed 2", "confirmed 3"]
    simulated.settle()
    assert client.told[2:] == ["confirmed 1"]


@pytest.mark.parametrize("modes", [(1, 2), (2, 1), (1, 2, 1), (2, 2, 1, 1, 2)])
def test_in_one_read_only_what_is_persistent_waits_for_the_disk(
    simulated: SimulatedBroker, client: Client, modes: tuple[int, ...]
) -> None:
    publish(client, *[("q", mode) for mode in modes])
    assert list(answered(client)) == [tag for tag, mode in enumerate(modes, 1) if mode == 1]
    simulated.settle()
    assert sorted(answered(client)) == [*range(1, len(modes) + 1)]


def test_what_comes_while_the_disk_syncs_is_confirmed_with_the_next_batch(
    simulated: SimulatedBroker, client: Client
) -> None:
    publish(client, ("q", 2), ("q", 2))
    end_sync = simulated.write_batch()
    publish(client, ("q", 2))
    end_sync()
    assert sorted(answered(client)) == [1, 2]
    simulated.settle()
    assert sorted(answered(client)) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_each_publish_is_answered_once_and_in_time(
    simulated: SimulatedBroker, client: Client, seed: int
) -> None:
    rng = random.Random(seed)
    client.publish("", "full", "first", delivery_mode=1)
    kinds: dict[int, tuple[str, int]] = {1: ("full", 1)}
    durable: set[int] = {1}
    for _ in range(20):
        some = rng.choices([("q", 1), ("q", 2), ("full", 2), ("nowhere", 2)], k=rng.randint(1, 4))
        kinds |= dict(enumerate(some, len(kinds) + 1))
        publish(client, *some)
        if rng.random() < 0.4:
            on_its_way = set(kinds)
            end_sync = simulated.write_batch()
            more = rng.choices([("q", 1), ("q", 2)], k=2)
            kinds |= dict(enumerate(more, len(kinds) + 1))
            publish(client, *more)
            end_sync()
            durable = on_its_way
        answers = answered(client)
        assert sorted(answers) == [
            tag for tag, kind in kinds.items() if tag in durable or kind != ("q", 2)
        ]
        assert all((answers[tag] == "refused") == (kinds[tag] == ("full", 2)) for tag in answers)
