"""The workers of each workload, how they are run, and the checks afterwards."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from amqpstore_tools.bench import batches, connects, consumer, lockstep, paced, producer
from amqpstore_tools.bench.fleet import Fleet
from amqpstore_tools.bench.measure import CONSUMER, Measurement, measure
from amqpstore_tools.bench.messages import Route
from amqpstore_tools.bench.report import Report
from amqpstore_tools.bench.routing import Routing
from amqpstore_tools.bench.server_process import ServerProcess
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.bench.worker import Task
from amqpstore_tools.client.connection import Connection
from amqpstore_tools.client.errors import BenchError

_ALL_DELIVERED = ("through", "fanout", "latency", "batches")
_DRAINING = ("drain", "backlog")

_COUNT_ATTEMPTS = 50  # of 0.1 s: a broker may still be moving unconfirmed messages into the queue


def run(settings: BenchSettings) -> Report:
    """Run the workload once, from declared and purged queues to deleted ones.

    Raises:
        BenchError: no connection, a failure of the broker during the run, the deadline, or
            counts that do not agree at the end.
    """
    server = ServerProcess.find(settings.address, settings.pid)
    routing = Routing.of(settings)
    control = Connection(settings.address)
    try:
        with _declared(control, settings, routing):
            filled = None
            if settings.workload == "backlog":
                filled = _measured(control, replace(settings, workload="fill"), routing, server)
            measured = _measured(control, settings, routing, server)
        control.close()
    finally:
        control.abandon()
    return Report(settings, control.product, control.version, measured, filled)


def _measured(
    control: Connection, settings: BenchSettings, routing: Routing, server: ServerProcess | None
) -> Measurement:
    backlog = _backlog(control, settings)
    with Fleet(settings, _tasks(settings, routing)) as fleet:
        fleet.wait_until_ready()
        measured = measure(fleet, settings, routing.copies, backlog, server)
    _check(control, settings, routing, measured)
    return measured


@contextlib.contextmanager
def _declared(control: Connection, settings: BenchSettings, routing: Routing) -> Iterator[None]:
    """Declare queues and exchange, and delete them at the end unless told to keep them, even if the
    run failed.
    """
    if settings.workload == "drain":
        for queue in routing.queues:
            control.count_ready(queue)  # a queue to drain only has to exist
    else:
        routing.declare(control, queue_type=settings.queue_type)
    try:
        yield
    finally:
        if not settings.keep:
            with contextlib.suppress(BenchError, OSError):
                routing.delete(control)


def _backlog(control: Connection, settings: BenchSettings) -> int:
    """Return how many messages exist before anything is published, and have to be consumed."""
    if settings.workload not in _DRAINING:
        return 0
    ready = sum(control.count_ready(queue) for queue in settings.queue_names())
    if not ready:
        raise BenchError(f"queue {settings.queue!r} is empty; `bench fill` puts messages there")
    return min(ready, settings.messages or ready)


def _tasks(settings: BenchSettings, routing: Routing) -> list[Task]:
    match settings.workload:
        case "connect":
            return [Task("connector", connects.connect_again_and_again)]
        case "sync":
            return _lockstep_tasks(settings, routing)
        case "batches":
            return _batch_tasks(settings, routing)
        case "latency":
            return _paced_producers(settings, routing) + _consumers(settings, routing)
        case "fill":
            return _producers(settings, routing)
        case "drain" | "backlog":
            return _consumers(settings, routing)
        case _:
            return _producers(settings, routing) + _consumers(settings, routing)


def _lockstep_tasks(settings: BenchSettings, routing: Routing) -> list[Task]:
    connections = shares(settings.connections, settings.processes)
    quotas = shares(settings.messages or producer.UNLIMITED, settings.processes)
    return [
        Task(
            "producer",
            partial(
                lockstep.publish_in_lockstep,
                routes=turned(routing.routes, index, settings.processes),
                connections=connections[index],
                quota=quotas[index],
            ),
        )
        for index in range(settings.processes)
    ]


def _batch_tasks(settings: BenchSettings, routing: Routing) -> list[Task]:
    quotas = shares(settings.messages or producer.UNLIMITED, settings.producers)
    tasks = []
    for index, quota in enumerate(quotas):
        names = dealt(routing.queues, index, settings.producers)
        run = partial(batches.exchange_batches, queues=names, quota=quota)
        tasks.append(Task("producer", run))
    return tasks


def _producers(settings: BenchSettings, routing: Routing) -> list[Task]:
    quotas = shares(settings.messages or producer.UNLIMITED, settings.producers)
    tasks = []
    for index, quota in enumerate(quotas):
        routes = turned(routing.routes, index, settings.producers)
        tasks.append(Task("producer", partial(producer.produce, routes=routes, quota=quota)))
    return tasks


def _paced_producers(settings: BenchSettings, routing: Routing) -> list[Task]:
    quotas = shares(settings.messages or producer.UNLIMITED, settings.producers)
    rates = shares(settings.rate, settings.producers)
    return [
        Task(
            "producer",
            partial(
                paced.produce_paced,
                routes=turned(routing.routes, index, settings.producers),
                rate=rates[index],
                quota=quotas[index],
            ),
        )
        for index in range(settings.producers)
    ]


def _consumers(settings: BenchSettings, routing: Routing) -> list[Task]:
    hands = [
        dealt(routing.queues, index, settings.consumers) for index in range(settings.consumers)
    ]
    quota = settings.messages if settings.workload in _DRAINING else 0
    stamped = settings.workload == "latency"
    return [
        Task(CONSUMER, partial(consumer.consume, queues=hand, stamped=stamped, quota=quota))
        for hand in hands
    ]


def shares(total: int, parts: int) -> list[int]:
    """Split `total` into `parts` that differ by one at most."""
    return [total // parts + (index < total % parts) for index in range(parts)]


def dealt(names: list[str], index: int, hands: int) -> list[str]:
    """Return the names dealt to one of the hands; with more hands than names, they share."""
    return names[index::hands] or [names[index % len(names)]]


def turned(routes: list[Route], index: int, hands: int) -> list[Route]:
    """Return all routes, starting at a different one for each of the hands."""
    start = index * len(routes) // hands
    return routes[start:] + routes[:start]


def _check(
    control: Connection, settings: BenchSettings, routing: Routing, measured: Measurement
) -> None:
    """Compare the counts.

    Raises:
        BenchError: messages were lost, repeated or nacked.
    """
    totals = measured.overall
    if measured.nacked:
        raise BenchError(f"the broker nacked {measured.nacked} of {totals.published} messages")
    expected = totals.published * routing.copies
    if settings.workload in _ALL_DELIVERED and totals.delivered != expected:
        raise BenchError(f"{totals.delivered} messages were delivered, but {expected} were due")
    if settings.workload in ("fill", "sync"):
        _check_ready(control, routing.queues, expected)


def _check_ready(control: Connection, queues: list[str], expected: int) -> None:
    for _ in range(_COUNT_ATTEMPTS):
        ready = sum(control.count_ready(queue) for queue in queues)
        if ready == expected:
            return
        time.sleep(0.1)
    raise BenchError(f"{expected} messages were published, but the queues hold {ready}")
