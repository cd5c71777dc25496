"""Rules that hold at each moment of a history.

- Each confirmed batch is durable, at its place, on each member that the list in etcd names: any of
  them may be elected. The same holds for declarations that were answered.
- A leader that opens its store has all of it, and each queue that its log speaks of.
- No two batches are committed for one place of the log.
- A checkpoint covers committed batches only, and no committed batch is discarded. But a leader may
  commit a batch without a follower that it has just told to discard it: the leader sends it again
  before the follower can be elected.
- Two machines never serve clients at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from amqpstore_server.cluster.frames import ReplicaPosition
from tests.simulated_group.disk import LogEntry
from tests.simulated_group.etcd import GroupEtcd
from tests.simulated_group.events import Events
from tests.simulated_group.machine import TIMING, SimulatedMachine, Witness


class Invariants(Witness):
    """A witness that checks the rules. `violations` is empty if every rule held."""

    def __init__(self, events: Events) -> None:
        self.confirms: list[LogEntry] = []
        self.answers: list[bytes] = []
        self.violations: list[str] = []
        self.confirmed_at: list[float] = []
        self._events = events
        self._machines: dict[str, SimulatedMachine] = {}
        self._etcd: GroupEtcd | None = None
        self._committed: dict[int, ReplicaPosition] = {}
        self.older: set[str] = set()
        """The machines that came back older than they were: in the list, they may not lead."""

    def watch(self, machines: Iterable[SimulatedMachine], etcd: GroupEtcd) -> None:
        """Watch these machines and this etcd."""
        self._machines = {one.name: one for one in machines}
        self._etcd = etcd

    def broken(self, rule: str) -> None:
        self.violations.append(f"at {self._events.now:.2f} s {rule}")

    def _listed(self) -> list[SimulatedMachine]:
        names = self._etcd.in_sync if self._etcd is not None else ()
        return [self._machines[name] for name in names if name not in self.older]

    # What is promised.

    def confirmed(self, entry: LogEntry) -> None:
        self.confirms.append(entry)
        self.confirmed_at.append(self._events.now)
        for machine in self._listed():
            if not machine.disk.is_durable(entry):
                self.broken(f"{entry.position} is confirmed, and {machine.name} may lead without")

    def answered(self, definition: bytes) -> None:
        self.answers.append(definition)
        for machine in self._listed():
            if definition not in machine.disk.definitions:
                self.broken(f"{definition!r} is answered, and {machine.name} may lead without")

    def list_changed(self) -> None:
        """The list in etcd has changed: each member of it may be elected now."""
        for machine in self._listed():
            self._check_all(machine, "may lead")

    def opened(self, machine: SimulatedMachine) -> None:
        if machine.is_of_older_version:
            return
        self._check_all(machine, "leads")
        defined = set(machine.disk.definitions)
        unknown = [one for one in machine.disk.log if one.needs not in defined]
        if unknown:
            self.broken(f"{machine.name} leads, and has no definition for {unknown[0]}")

    def _check_all(self, machine: SimulatedMachine, what: str) -> None:
        lost = [one for one in self.confirms if not machine.disk.is_durable(one)]
        if lost:
            self.broken(
                f"{machine.name} {what} without {len(lost)} confirmed batches, first {lost[0]}"
            )
        defined = set(machine.disk.definitions)
        forgotten = [one for one in self.answers if one not in defined]
        if forgotten:
            self.broken(f"{machine.name} {what} without {forgotten[0]!r}, which was answered")

    # What is committed.

    def committed(self, machine: SimulatedMachine, number: int) -> None:
        known = len(self._committed)
        for entry in machine.disk.log[min(known, number - 1) : number]:
            before = self._committed.setdefault(entry.position.number, entry.position)
            if before != entry.position:
                self.broken(f"{before} and {entry.position} are committed for one place")

    def covers(self, machine: SimulatedMachine, number: int) -> None:
        for entry in machine.disk.log[machine.disk.covered : number]:
            if self._committed.get(entry.position.number) != entry.position:
                self.broken(f"a checkpoint of {machine.name} covers {entry.position}, uncommitted")

    def discards(self, machine: SimulatedMachine, entries: list[LogEntry]) -> None:
        listed = self._listed()
        for entry in entries:
            if self._committed.get(entry.position.number) == entry.position:
                followed = self._machines.get(machine.followed)
                have_it = [*listed, *([followed] if followed else [])]
                if machine not in listed and all(one.disk.is_durable(entry) for one in have_it):
                    continue
                self.broken(f"{machine.name} discards {entry.position}, which is committed")
            elif entry.position.number <= machine.disk.covered:
                self.broken(f"{machine.name} discards {entry.position} behind its checkpoint")

    # Who serves.

    def look(self, serving: list[SimulatedMachine], leases_lost_at: float) -> None:
        """Check the machines that serve clients now. Only this check needs right clocks."""
        if len(serving) < 2 or any(one.has_wrong_clock for one in self._machines.values()):
            return
        if self._events.now <= leases_lost_at + TIMING.lease_s:
            # A leader whose lease etcd lost by mistake finds out within the lease's time.
            serving = [one for one in serving if not one.relies_on_lease]
        if len(serving) > 1:
            names = " and ".join(one.name for one in serving)
            self.broken(f"{names} serve clients at once")
