"""Random actions of publishers and consumers, by seed."""

from __future__ import annotations

import random

from amqpstore.format.records import Kind, encode_record
from amqpstore_tools.drill.outside import Outside

_STEPS = {
    "publish": 24,
    "spread": 6,
    "take": 18,
    "ack": 18,
    "sync": 14,
    "begin sync": 8,
    "drain": 4,
    "fast and slow": 3,
    "requeue": 6,
    "purge": 2,
    "create queue": 2,
    "delete queue": 1,
    "reopen": 2,
    "kill": 2,
    "checkpoint": 4,
    "housekeep": 6,
    "lazy": 2,
}


SLOW = "drill-slow"
"""A queue that always exists, and receives and delivers little."""


_MAX_QUEUES = 5
_MAX_SLOW = 16


def play(outside: Outside, rng: random.Random, steps: int) -> None:
    """Open the store, perform `steps` actions, and close it or kill it."""
    outside.open()
    if SLOW not in outside.queue_names:
        outside.create_queue(SLOW)
    _create_queue(outside, rng)
    names, weights = list(_STEPS), list(_STEPS.values())
    for step in rng.choices(names, weights, k=steps):
        _do(outside, step, rng)
    if rng.random() < 0.5:
        outside.finish_sync()
        outside.close()
    else:
        outside.kill()


def body(rng: random.Random) -> bytes:
    """Return a message's body: mostly small, sometimes over several sectors, sometimes like a
    record.
    """
    size = rng.choice([0, 1, 30, 100, 100, 300, 700, 1500])
    if rng.random() < 0.1:
        # Like a record of this store: with a number and a segment that may be the next.
        return encode_record(
            Kind.MESSAGE, rng.randint(1, 50), rng.randint(1, 8), rng.randbytes(size), seed=0
        )
    return rng.randbytes(size)


def _do(outside: Outside, step: str, rng: random.Random) -> None:
    if step == "publish":
        _publish(outside, rng)
    elif step == "spread":
        _spread(outside, rng)
    elif step == "sync":
        outside.sync()
    elif step == "begin sync":
        outside.begin_sync()
    elif step == "create queue":
        _create_queue(outside, rng)
    elif step == "reopen":
        outside.finish_sync()
        outside.close()
        outside.open()
    elif step == "kill":
        outside.kill()
        outside.open()
    elif step == "checkpoint":
        outside.checkpoint()
    elif step == "fast and slow":
        _publish_fast_and_slow(outside, rng)
    elif step == "drain":
        _drain(outside, rng)
    elif step == "housekeep":
        # Twice, as the first may only take over finished work.
        outside.housekeep(2)
    else:
        _do_to_queue(outside, step, rng)


def _do_to_queue(outside: Outside, step: str, rng: random.Random) -> None:
    """Perform a step that needs a queue. Without a suitable one, the step is left out."""
    names = outside.queue_names
    name = rng.choice(names)
    if step == "delete queue":
        if name != SLOW:
            outside.delete_queue(name)
    elif step == "purge":
        outside.purge(name)
    elif step == "lazy":
        outside.set_lazy(name, rng.random() < 0.5)
    elif step == "take":
        if outside.ready_count(name):
            outside.take(name, rng.randint(1, 5), acked=rng.random() < 0.2)
    elif count := outside.unacked_count(name):
        # Not always in the order in which they were taken.
        index = rng.randrange(count)
        if step == "ack":
            outside.ack(name, index)
        else:
            outside.requeue(name, index)


def _publish_fast_and_slow(outside: Outside, rng: random.Random) -> None:
    """Publish enough for segments of many messages that are soon gone, and few that stay."""
    fast = [name for name in outside.queue_names if name != SLOW]
    for _ in range(rng.randint(2, 4)):
        outside.publish([SLOW], [rng.randbytes(20)])
        if fast:
            outside.publish([rng.choice(fast)], [rng.randbytes(rng.randint(500, 1500))])
        outside.sync()
    _drain(outside, rng)


def _drain(outside: Outside, rng: random.Random) -> None:
    """Leave few messages in all queues but the slow one: then segments are mostly garbage."""
    if (count := outside.ready_count(SLOW)) > _MAX_SLOW:
        # The same: the cost of checking a disk depends on its content.
        outside.take(SLOW, count - _MAX_SLOW // 2, acked=True)
    for name in outside.queue_names:
        left = rng.randint(0, 2)
        while name != SLOW and (count := outside.ready_count(name)) > left:
            outside.take(name, min(count - left, rng.randint(1, 8)), acked=rng.random() < 0.9)
        while name != SLOW and outside.unacked_count(name):
            outside.ack(name)
    outside.sync()
    if rng.random() < 0.7:
        outside.checkpoint()
        outside.housekeep(2)


def _publish(outside: Outside, rng: random.Random) -> None:
    names = outside.queue_names
    queues = rng.sample(names, rng.randint(1, min(3, len(names))))
    if len(names) > 1 and rng.random() < 0.75:
        queues = [name for name in queues if name != SLOW] or [names[1]]
    bodies = [body(rng) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
    outside.publish(queues, bodies, persistent=rng.random() < 0.85)


def _spread(outside: Outside, rng: random.Random) -> None:
    names = [name for name in outside.queue_names if outside.is_durable(name)]
    count = rng.randint(2, 6)
    most = min(3, len(names))
    outside.spread([(rng.sample(names, rng.randint(1, most)), body(rng)) for _ in range(count)])


def _create_queue(outside: Outside, rng: random.Random) -> None:
    names = outside.queue_names
    if len(names) >= _MAX_QUEUES:
        # A long history continues with as much as a short one: each of its disks is checked.
        outside.delete_queue(rng.choice([name for name in names if name != SLOW]))
    outside.create_queue(f"drill-{outside.next_number}", durable=rng.random() < 0.85)
