"""Reads what an open store holds, without changing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from amqpstore import Queue, RecoveryReport, Run, Store
from amqpstore.catalog.catalog import Value
from amqpstore.format.index import IndexReader, live_runs
from amqpstore.identity import marker
from amqpstore.system.files import Files
from amqpstore_tools.drill.payloads import Payload, message_name


class Seen(NamedTuple):
    """A message that is ready in a queue."""

    payload: Payload
    sequence: int
    delivery_count: int
    message_id: int

    @property
    def name(self) -> str:
        """Return the name of the message."""
        return message_name(self.payload.exchange, self.payload.routing_key, self.message_id)


@dataclass(frozen=True)
class ObservedQueue:
    """A queue with its ready messages, in order."""

    id: int
    definition: Value
    ready: tuple[Seen, ...]


@dataclass(frozen=True)
class Observation:
    """Queues by name; `report` is recovery's; `faults` are contradictions within the store.

    Two are equal when their queues are, whatever recovery reported.
    """

    queues: dict[str, ObservedQueue]
    report: RecoveryReport = field(compare=False)
    faults: tuple[tuple[str, str], ...] = field(compare=False)


def observe(store: Store) -> Observation:
    """Observe a store that was just opened: nothing has been taken or published yet."""
    faults: list[tuple[str, str]] = []
    queues: dict[str, ObservedQueue] = {}
    for queue in store.queues.values():
        name = _name_of(queue)
        said = queue.ready_count
        store.stored.paging.read_index(queue)
        if queue.ready_count != said:
            counted = f"{name} has {queue.ready_count} messages once its index is read"
            faults.append(("I12", f"{counted}, and said {said} before"))
        ready = [seen for run in queue.ready for seen in _read(store, run, name, faults)]
        if name in queues:
            faults.append(("I2", f"queue {name} exists twice"))
        queues[name] = ObservedQueue(queue.id, queue.definition, tuple(ready))
        faults.extend(_recount(store, queue, name))
    return Observation(queues, store.recovery_report, tuple(faults))


def _name_of(queue: Queue) -> str:
    """Return a broker's name for a queue, or for the part of one that this is."""
    if not isinstance(queue.definition, dict) or "name" not in queue.definition:
        return f"queue {queue.id}"
    name = str(queue.definition["name"])
    if (vhost := queue.definition.get("vhost", "/")) != "/":
        name = f"{vhost}/{name}"
    if "level" in queue.definition:
        name = f"{name} (priority {queue.definition['level']})"
    return name


def paged_runs(store: Store, files: Files, queue: Queue) -> list[Run]:
    """Read what is ready in a queue, and only in index files, without changing the queue.

    Raises: DamageError, OSError.
    """
    found = marker.read(files, store.directory)
    if found is None or not queue.paged:
        return []
    reader = IndexReader(files, store.directory, found.seed)
    runs: list[Run] = []
    for file in queue.paged:
        state = queue.index[file.number]
        runs += live_runs(reader.entries(queue.id, state), state, file.first, file.end)
    return runs


def _read(store: Store, run: Run, name: str, faults: list[tuple[str, str]]) -> list[Seen]:
    seen: list[Seen] = []
    while len(seen) < run.count:
        got = len(seen)
        messages = store.log.read(run.first_id + got, run.count - got)
        if not isinstance(messages, list) or not messages:
            faults.append(("I1", f"a message that {name} has cannot be read: {messages}"))
            break
        seen.extend(
            Seen(
                Payload(
                    message.envelope.exchange,
                    message.envelope.routing_key,
                    message.envelope.properties,
                    message.body,
                ),
                run.first_sequence + got + index,
                run.delivery_count,
                run.first_id + got + index,
            )
            for index, message in enumerate(messages)
        )
    return seen


def _recount(store: Store, queue: Queue, name: str) -> list[tuple[str, str]]:
    """Check I12, and the order of the runs themselves."""
    faults: list[tuple[str, str]] = []
    runs = list(queue.ready)
    counted = sum(run.count for run in runs)
    flagged = sum(run.count for run in runs if run.delivery_count)
    report = store.recovery_report
    if not counted == queue.ready_count == report.kept.get(queue.id):
        reported = f"{queue.ready_count}, and recovery {report.kept.get(queue.id)}"
        faults.append(("I12", f"{name} holds {counted} messages, but reports {reported}"))
    if flagged != report.redelivered.get(queue.id):
        reported = f"{report.redelivered.get(queue.id)}"
        faults.append(("I12", f"{name} has {flagged} delivered messages, recovery says {reported}"))
    end = 1
    for run in runs:
        if run.first_sequence < end or run.count < 1:
            faults.append(("I6", f"{name}: {run!r} is out of order"))
        end = run.end
    if queue.next_sequence < end:
        faults.append(
            ("I12", f"{name} continues at sequence {queue.next_sequence}, but has {end - 1}")
        )
    return faults
