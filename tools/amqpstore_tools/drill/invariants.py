"""The invariants of a recovered store, whatever the crash: compares the ledger with an observation.

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
from amqpstore_tools.drill.ledger import Account, Entry, Ledger
from amqpstore_tools.drill.observation import Observation, ObservedQueue, Seen
from amqpstore_tools.drill.trace import Asked, Opened, Promised, Trace
from amqpstore_tools.simulation.memory_files import MemoryFiles

Fault = tuple[str, str]


def broken_promises(ledger: Ledger, observation: Observation) -> list[Fault]:
    """Return where the store contradicts what the outside was promised, or contains what nobody
    requested.
    """
    faults = [
        ("I2", f"queue {name} was never asked for")
        for name in observation.queues
        if name not in ledger.accounts
    ]
    for name, account in ledger.accounts.items():
        queue = observation.queues.get(name)
        if queue is None:
            if account.is_kept and account.must_be_there and not account.may_be_gone:
                faults.append(("I1", f"queue {name} is missing"))
        elif account.must_be_gone:
            faults.append(("I5", f"queue {name} was deleted and is back"))
        elif not account.is_kept:
            faults.append(("I2", f"queue {name} is not durable and survived"))
        else:
            faults.extend(_queue_faults(name, account, queue))
    faults.extend(_fan_out_faults(ledger, observation))
    return faults


def faults_at_openings(ledger: Ledger, trace: Trace) -> list[Fault]:
    """Return the faults each time that a store was opened in a history; `ledger` has the promises
    before it, and afterwards those at its end.
    """
    faults: list[Fault] = []
    for event in trace.events:
        if isinstance(event, Opened):
            found = event.observation
            faults += [*found.faults, *reported_damage(found.report)]
            faults += broken_promises(ledger, found)
        if isinstance(event, Asked | Promised | Opened):
            ledger.note(event)
    return faults


def reported_damage(report: RecoveryReport) -> list[Fault]:
    """Check I10: on a disk that only lost power, nothing is damaged and nothing is lost."""
    faults = [("I10", f"a crash was reported as damage: {damage}") for damage in report.damage]
    faults.extend(("I10", f"a message was reported as lost: {lost}") for lost in report.lost)
    return faults


def touched_files(ledger: Ledger, files: MemoryFiles) -> list[Fault]:
    """Check I11: files unknown to the store are unchanged."""
    return [
        ("I11", f"{path} was changed or removed")
        for path, content in ledger.files.items()
        if not files.exists(path) or files.content(path) != content
    ]


def _queue_faults(name: str, account: Account, queue: ObservedQueue) -> Iterator[Fault]:
    seen: dict[str, Seen] = {}
    last_place = -1
    for message in queue.ready:
        what = f"{message.name} in {name}"
        entry = account.entries.get(message.name)
        if entry is None:
            yield "I2", f"{what} was never published there"
            continue
        if message.name in seen:
            yield "I1", f"{what} is there twice"
            continue
        seen[message.name] = message
        if entry.place < last_place:
            yield "I6", f"{what} is behind a later message"
        last_place = max(last_place, entry.place)
        yield from _message_faults(what, entry, message)
    for message_name, entry in account.entries.items():
        must_be_there = entry.is_kept and entry.is_confirmed and not entry.may_be_gone
        if must_be_there and message_name not in seen:
            yield "I1", f"{message_name} in {name} was confirmed and is missing"


def _message_faults(what: str, entry: Entry, message: Seen) -> Iterator[Fault]:
    if message.payload != entry.payload:
        yield "I2", f"{what} is not what was published"
    if not entry.is_kept:
        yield "I2", f"{what} is transient and survived"
    if entry.must_be_gone:
        yield "I5", f"{what} was acked, purged or taken back for good, and is there again"
    if not entry.deliveries_promised <= message.delivery_count <= entry.deliveries_asked:
        asked = f"{entry.deliveries_promised} to {entry.deliveries_asked}"
        yield "I5", f"{what} was delivered {asked} times, and says {message.delivery_count}"


def _fan_out_faults(ledger: Ledger, observation: Observation) -> Iterator[Fault]:
    there: dict[int, str] = {}
    missing: dict[int, str] = {}
    for name, account in ledger.accounts.items():
        queue = observation.queues.get(name)
        ready = queue.ready if queue else ()
        seen = {message.name for message in ready}
        for message_name, entry in account.entries.items():
            if message_name in seen:
                there[entry.publish] = f"{message_name} in {name}"
            elif entry.is_kept and not (entry.may_be_gone or account.may_be_gone):
                missing[entry.publish] = f"{message_name} in {name}"
    for publish in there.keys() & missing.keys():
        text = f"of publish {publish} {there[publish]} is there, {missing[publish]} is not"
        yield "I3", text
