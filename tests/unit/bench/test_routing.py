"""Tests of the queues to which the messages of each workload go."""

import argparse
from collections import Counter
from fnmatch import fnmatchcase

import pytest

from amqpstore_tools.bench.routing import Routing
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.bench.workload import turned
from amqpstore_tools.verbs import bench as command


def routing(*arguments: str) -> Routing:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return Routing.of(BenchSettings.of(parser.parse_args(arguments)))


@pytest.mark.parametrize(("queues", "matches"), [(20, 3), (20, 1), (5, 5), (3, 2), (1000, 10)])
def test_a_key_of_the_topic_exchange_matches_as_many_queues_as_asked(
    queues: int, matches: int
) -> None:
    found = routing("through", "--topic", "--queues", str(queues), "--matches", str(matches))
    assert found.copies == matches
    assert len(found.bindings) == queues
    assert len({len(key) for _, key in found.routes}) == 1
    load: Counter[str] = Counter()
    for exchange, key in found.routes:
        assert exchange == found.exchange
        # Each word of the patterns is one word of the key.
        reached = [queue for queue, pattern in found.bindings if fnmatchcase(key, pattern)]
        assert len(reached) == matches
        load.update(reached)
    assert set(load) == set(found.queues)


def test_the_combinations_of_20_queues_are_all_used() -> None:
    found = routing("through", "--topic", "--queues", "20")
    assert len(set(found.routes)) == 7 * 7 * 6
    assert found.routes != sorted(found.routes)


def test_queues_are_taken_in_turn_and_each_producer_begins_elsewhere() -> None:
    found = routing("through", "--queues", "10")
    assert found.routes == [("", name) for name in found.queues]
    hands = [turned(found.routes, index, 4) for index in range(4)]
    assert all(sorted(hand) == found.routes for hand in hands)
    assert len({hand[0] for hand in hands}) == 4


def test_a_fanout_reaches_all_queues() -> None:
    found = routing("fanout", "--queues", "3")
    assert (found.copies, found.routes) == (3, [(found.exchange, "")])
