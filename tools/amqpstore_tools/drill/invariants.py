"""The invariants of a recovered store, whatever the crash: compares promises with an observation.

The numbers are those of the project's list of invariants. Each fault is a pair: the violated
invariant, and a description.

Checked here: I1 confirmed messages are there, once per queue; I2 nothing else is, byte for byte; I3
one publish is in all of its queues or in none; I5 promised acks, purges and deletions hold, and
deliveries are counted; I6 order; I10 a crash is not damage; I11 unknown files are untouched. I9
(opening ends, without an error), I12 (counts equal a recount) and "recovering twice gives the same
as once" are checked where stores are opened: `explorer`, `observation`.
"""

from __future__ import annotations

from collections.abc import Iterator

from amqpstore import RecoveryReport
from amqpstore_tools.drill.observation import Observation, ObservedQueue, Seen
from amqpstore_tools.drill.promises import PromisedMessage, PromisedQueue, Promises
from amqpstore_tools.drill.trace import Asked, Promised, StoreOpened, Trace
from amqpstore_tools.simulation.memory_files import MemoryFiles

Fault = tuple[str, str]


def broken_promises(promises: Promises, observation: Observation) -> list[Fault]:
    """Return where the store contradicts what the outside was promised, or contains what was not
    requested.
    """
    faults = [
        ("I2", f"queue {name} was never requested")
        for name in observation.queues
        if name not in promises.queues
    ]
    for name, promised in promises.queues.items():
        queue = observation.queues.get(name)
        if queue is None:
            if promised.is_kept and promised.must_be_there and not promised.may_be_gone:
                faults.append(("I1", f"queue {name} is missing"))
        elif promised.must_be_gone:
            faults.append(("I5", f"queue {name} was deleted and is back"))
        elif not promised.is_kept:
            faults.append(("I2", f"queue {name} is not durable and survived"))
        else:
            faults.extend(_queue_faults(name, promised, queue))
    faults.extend(_fan_out_faults(promises, observation))
    return faults


def faults_at_openings(promises: Promises, trace: Trace) -> list[Fault]:
    """Return the faults each time that a store was opened in a history; `promises` has those
    before it, and afterwards those at its end.
    """
    faults: list[Fault] = []
    for event in trace.events:
        if isinstance(event, StoreOpened):
            found = event.observation
            faults += [*found.faults, *reported_damage(found.report)]
            faults += broken_promises(promises, found)
        if isinstance(event, Asked | Promised | StoreOpened):
            promises.note(event)
    return faults


def reported_damage(report: RecoveryReport) -> list[Fault]:
    """Check I10: on a disk that only lost power, nothing is damaged and nothing is lost."""
    faults = [("I10", f"a crash was reported as damage: {damage}") for damage in report.damage]
    faults.extend(("I10", f"a message was reported as lost: {lost}") for lost in report.lost)
    if report.lost_count > len(report.lost) or report.shortfall:
        text = f"{report.lost_count} messages were reported as lost: {report.shortfall}"
        faults.append(("I10", f"{text}, {report.absent}"))
    return faults


def touched_files(promises: Promises, files: MemoryFiles) -> list[Fault]:
    """Check I11: files unknown to the store are unchanged."""
    return [
        ("I11", f"{path} was changed or removed")
        for path, content in promises.files.items()
        if not files.exists(path) or files.content(path) != content
    ]


def _queue_faults(name: str, promised: PromisedQueue, queue: ObservedQueue) -> Iterator[Fault]:
    seen: dict[str, Seen] = {}
    last_number = -1
    for message in queue.ready:
        what = f"{message.name} in {name}"
        entry = promised.entries.get(message.name)
        if entry is None:
            yield "I2", f"{what} was never published to it"
            continue
        if message.name in seen:
            yield "I1", f"{what} is there twice"
            continue
        seen[message.name] = message
        if entry.number < last_number:
            yield "I6", f"{what} is behind a later message"
        last_number = max(last_number, entry.number)
        yield from _message_faults(what, entry, message)
    for message_name, entry in promised.entries.items():
        must_be_there = entry.is_kept and entry.is_confirmed and not entry.may_be_gone
        if must_be_there and message_name not in seen:
            yield "I1", f"{message_name} in {name} was confirmed and is missing"


def _message_faults(what: str, entry: PromisedMessage, message: Seen) -> Iterator[Fault]:
    if message.payload != entry.payload:
        yield "I2", f"{what} differs from what was published"
    if not entry.is_kept:
        yield "I2", f"{what} is transient and survived"
    if entry.must_be_gone:
        yield "I5", f"{what} was removed for good, and is back"
    if not entry.deliveries_promised <= message.delivery_count <= entry.deliveries_asked:
        asked = f"{entry.deliveries_promised} to {entry.deliveries_asked}"
        yield "I5", f"{what} was delivered {asked} times, but its count is {message.delivery_count}"


def _fan_out_faults(promises: Promises, observation: Observation) -> Iterator[Fault]:
    there: dict[int, str] = {}
    missing: dict[int, str] = {}
    for name, promised in promises.queues.items():
        queue = observation.queues.get(name)
        ready = queue.ready if queue else ()
        seen = {message.name for message in ready}
        for message_name, entry in promised.entries.items():
            if message_name in seen:
                there[entry.publish] = f"{message_name} in {name}"
            elif entry.is_kept and not (entry.may_be_gone or promised.may_be_gone):
                missing[entry.publish] = f"{message_name} in {name}"
    for publish in there.keys() & missing.keys():
        text = f"of publish {publish} {there[publish]} is there, {missing[publish]} is not"
        yield "I3", text
