"""A check makes few calls for each message; their number must not grow again.

In one queue neighbours are one operation of a batch; in ten queues whose messages lie between each
other each message is one of its own. Calls are the same however busy the machine is.
"""

from pathlib import Path

import pytest

from amqpstore import Envelope, Message, Options, Run, Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_tools.check.engine import check
from tests.calls import Counts

COUNT = 1000
ACKED = 50

CEILINGS = {1: (1, 7), 10: (11, 23)}
"""Calls of Python functions and of built-in ones for each message, by number of queues."""


def make_store(directory: Path, queue_count: int, message_count: int) -> str:
    """Make a store of small messages that go to queues in turn. The index files have most of
    them, and the log behind the last checkpoint has the rest.
    """
    path = str(directory / f"store-{message_count}")
    options = Options(reserve_bytes=0, least_free_bytes=0, checkpoint_ms=1 << 60)
    with Store.open(path, options=options, worker=InlineWorker()) as store:
        names = [f"q{number}" for number in range(queue_count)]
        queues = [store.create_queue({"vhost": "/", "name": name}) for name in names]
        for number in range(message_count):
            place = number % queue_count
            message = Message(Envelope("", names[place], b"\x10\x00\x02"), b"%d" % number * 20)
            store.publish([queues[place]], [message])
            if number % 100 == 0:
                store.sync()
            if number == message_count * 3 // 4:
                run = store.take(queues[0], limit=ACKED // queue_count)
                assert isinstance(run, Run)
                store.ack(queues[0], run)
                store.upkeep.checkpoint()
        store.sync()
        store.abandon()
    return path


@pytest.mark.parametrize("queue_count", CEILINGS)
def test_a_check_makes_few_calls_for_each_message(tmp_path: Path, queue_count: int) -> None:
    calls = []
    for message_count in (COUNT // 2, COUNT):
        path = make_store(tmp_path, queue_count, message_count)
        counts = Counts(without=("tests",))
        with counts:
            checked = check(path)
        assert not list(checked.findings)
        calls.append((counts.python.total(), counts.built_in.total()))
    # What a check costs whatever is in the store is in both.
    found = [2 * (more - less) / COUNT for less, more in zip(*calls, strict=True)]
    for one, ceiling in zip(found, CEILINGS[queue_count], strict=True):
        assert 0 < one < ceiling
