"""What each workload declares on the broker, which workers it needs, and what must hold after."""

import contextlib
import time
from collections.abc import Iterator
from functools import partial

from amqpstore_tools.bench import batches, connects, consumer, lockstep, paced, producer
from amqpstore_tools.bench.fleet import Fleet
from amqpstore_tools.bench.measure import CONSUMER, Measurement, measure
from amqpstore_tools.bench.report import Report
from amqpstore_tools.bench.settings import Settings
from amqpstore_tools.bench.worker import Task
from amqpstore_tools.client.connection import Connection
from amqpstore_tools.client.errors import BenchError

_ALL_DELIVERED = ("through", "fanout", "latency", "batches")

_COUNT_ATTEMPTS = 50  # of 0.1 s: a broker may still be moving unconfirmed messages into the queue


def run(settings: Settings) -> Report:
    """Runs the workload once, from declared and purged queues to deleted ones.

    Raises:
        BenchError: no connection, a failure of the broker during the run, the deadline, or
            counts that do not agree at the end.
    """
    control = Connection(settings.address)
    try:
        with _topology(control, settings):
            backlog = _backlog(control, settings)
            tasks = _tasks(settings)
            with Fleet(settings, tasks) as fleet:
                fleet.wait_until_ready()
                measured = measure(
                    fleet,
                    settings,
                    copies=settings.queues if settings.workload == "fanout" else 1,
                    backlog=backlog,
                )
            _check(control, settings, measured)
        control.close()
    finally:
        control.abandon()
    return Report(settings, control.product, control.version, measured)


def _exchange(settings: Settings) -> str:
    """The exchange to publish to; empty is the default exchange."""
    return f"{settings.queue}-fanout" if settings.workload == "fanout" else ""


@contextlib.contextmanager
def _topology(control: Connection, settings: Settings) -> Iterator[None]:
    """Declares, and deletes at the end unless told to keep, also when the run failed."""
    queues = [] if settings.workload == "connect" else settings.queue_names()
    exchange = _exchange(settings)
    for queue in queues:
        if settings.workload == "drain":
            control.count_ready(queue)  # to be there is all a queue to drain must do
            continue
        arguments = {"x-queue-type": settings.queue_type} if settings.queue_type else {}
        control.declare_queue(queue, {**arguments})
        control.purge_queue(queue)
    if exchange:
        control.declare_fanout_exchange(exchange)
        for queue in queues:
            control.bind_queue(queue, exchange)
    try:
        yield
    finally:
        if not settings.keep:
            with contextlib.suppress(BenchError, OSError):
                for queue in queues:
                    control.delete_queue(queue)
                if exchange:
                    control.delete_exchange(exchange)


def _backlog(control: Connection, settings: Settings) -> int:
    """Messages that are to be consumed before anything is published: only drain has some."""
    if settings.workload != "drain":
        return 0
    ready = sum(control.count_ready(queue) for queue in settings.queue_names())
    if not ready:
        raise BenchError(f"queue {settings.queue!r} is empty; `bench fill` puts messages there")
    return min(ready, settings.messages or ready)


def _tasks(settings: Settings) -> list[Task]:
    queues = settings.queue_names()
    quota = settings.messages or producer.UNLIMITED
    match settings.workload:
        case "connect":
            return [Task("connector", connects.connect_again_and_again)]
        case "sync":
            return _lockstep_tasks(settings)
        case "batches":
            return _batch_tasks(settings)
        case "latency":
            return [
                Task("producer", partial(paced.produce_paced, queue=queues[0], quota=quota)),
                Task(CONSUMER, partial(consumer.consume, queues=queues, stamped=True)),
            ]
        case "fill":
            return _producers(settings)
        case "drain":
            return _consumers(settings)
        case _:
            return _producers(settings) + _consumers(settings)


def _lockstep_tasks(settings: Settings) -> list[Task]:
    routes = [("", queue) for queue in settings.queue_names()]
    connections = shares(settings.connections, settings.processes)
    quotas = shares(settings.messages or producer.UNLIMITED, settings.processes)
    return [
        Task(
            "producer",
            partial(lockstep.publish_in_lockstep, routes=routes, connections=count, quota=quota),
        )
        for count, quota in zip(connections, quotas, strict=True)
    ]


def _batch_tasks(settings: Settings) -> list[Task]:
    quotas = shares(settings.messages or producer.UNLIMITED, settings.producers)
    tasks = []
    for index, quota in enumerate(quotas):
        names = dealt(settings.queue_names(), index, settings.producers)
        run = partial(batches.exchange_batches, queues=names, quota=quota)
        tasks.append(Task("producer", run))
    return tasks


def _producers(settings: Settings) -> list[Task]:
    quotas = shares(settings.messages or producer.UNLIMITED, settings.producers)
    exchange = _exchange(settings)
    tasks = []
    for index, quota in enumerate(quotas):
        if exchange:
            routes = [(exchange, "")]
        else:
            names = dealt(settings.queue_names(), index, settings.producers)
            routes = [("", name) for name in names]
        tasks.append(Task("producer", partial(producer.produce, routes=routes, quota=quota)))
    return tasks


def _consumers(settings: Settings) -> list[Task]:
    names = settings.queue_names()
    hands = [dealt(names, index, settings.consumers) for index in range(settings.consumers)]
    quota = settings.messages if settings.workload == "drain" else 0
    return [Task(CONSUMER, partial(consumer.consume, queues=hand, quota=quota)) for hand in hands]


def shares(total: int, parts: int) -> list[int]:
    """`total` in `parts` that differ by one at most."""
    return [total // parts + (index < total % parts) for index in range(parts)]


def dealt(names: list[str], index: int, hands: int) -> list[str]:
    """The names dealt to one of the hands; with more hands than names, they share."""
    return names[index::hands] or [names[index % len(names)]]


def _check(control: Connection, settings: Settings, measured: Measurement) -> None:
    """Holds the counts against each other.

    Raises:
        BenchError: messages were lost, repeated or nacked.
    """
    totals = measured.overall
    if measured.nacked:
        raise BenchError(f"the broker nacked {measured.nacked} of {totals.published} messages")
    copies = settings.queues if settings.workload == "fanout" else 1
    expected = totals.published * copies
    if settings.workload in _ALL_DELIVERED and totals.delivered != expected:
        raise BenchError(f"{totals.delivered} messages were delivered, but {expected} were due")
    if settings.workload in ("fill", "sync"):
        _check_ready(control, settings.queue_names(), expected)


def _check_ready(control: Connection, queues: list[str], expected: int) -> None:
    for _ in range(_COUNT_ATTEMPTS):
        ready = sum(control.count_ready(queue) for queue in queues)
        if ready == expected:
            return
        time.sleep(0.1)
    raise BenchError(f"{expected} messages were published, but the queues hold {ready}")
