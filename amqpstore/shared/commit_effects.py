"""The effects of a commit: copies for histories, and wake-ups for arrived messages."""

from __future__ import annotations

from functools import partial

from amqpstore.format.runs import Run
from amqpstore.prepared import Publish
from amqpstore.queues.queue import Queue
from amqpstore.shared.queues import Queues
from amqpstore.store import Store


def copies(
    store: Store, queues: Queues, received: list[tuple[Queue, Run]], now_ms: int
) -> list[Publish]:
    """Return what a transaction that acks received messages has to publish for histories."""
    publishes: list[Publish] = []
    runs: dict[int, list[Run]] = {}
    for queue, run in received:
        runs.setdefault(queue.id, []).append(run)
    for queue_id, its_runs in runs.items():
        if (named := queues.of_id(queue_id)) and named.history:
            publishes += named.history.copies(store, its_runs, now_ms)
    return publishes


def when_durable(
    store: Store,
    queues: Queues,
    publishes: list[Publish],
    received: list[tuple[Queue, Run]],
    now_ms: int,
) -> None:
    """Wake receivers and trim the histories once a commit is durable, and so its messages are
    ready. To be called after the commit.
    """
    for placements, messages, *_ in publishes:
        # Receivers are woken once it is durable: woken now, one would find an empty queue and wait
        # again.
        for placement in placements:
            if named := queues.of_id(placement.queue.id):
                store.log.when_durable(partial(named.arrivals.arrived, len(messages)))
    for queue_id in {queue.id for queue, _ in received}:
        if (named := queues.of_id(queue_id)) and named.history:
            store.log.when_durable(partial(named.history.trim, store, now_ms))
