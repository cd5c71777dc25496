"""A model of etcd: linearizable, with revisions and leases, and the faults its users have met."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import inf
from random import Random
from typing import Any, NamedTuple

from amqpstore_server.cluster.keys import (
    FLOOR,
    GROUP,
    IN_SYNC,
    STATE,
    EtcdRow,
    EtcdTransaction,
    View,
    member_key,
)
from amqpstore_server.cluster.tenure import Outcome
from tests.simulated_group.events import Events

ALIVE_S = 10.0
TIMEOUT_S = 1.0
CLUSTER = 0xC1


def keep_none(transaction: EtcdTransaction) -> float:
    """Hold no transaction back."""
    return 0.0


class GroupEtcd(ABC):
    """The interface of etcd for histories of a group: requests of machines, faults, and the list.

    No method has a body here: an etcd that is not the model may not inherit an answer of the model
    by accident, as the rules would then be checked against that.
    """

    def __init__(self) -> None:
        self.cut_off: set[str] = set()
        self.is_away = False
        self.lost_leases_at = -inf
        self.loss = 0.01
        """How often a request, or its answer, is lost."""
        self.slow_s = 0.02
        """The longest time until a request is carried out, and that for its answer to come back."""
        self.least_s = 0.0005
        """The shortest time that each way takes: a slow etcd is slow with each request."""
        self.hold: Callable[[EtcdTransaction], float] = keep_none
        """Returns for how many seconds a transaction is held back: its answer is then lost."""
        self.changed: Callable[[str], None] = lambda _: None
        """Called with each key that changed, except those that only say which members are alive."""

    def is_cut(self, member: str) -> bool:
        """Tell whether a member cannot reach it."""
        return self.is_away or member in self.cut_off

    @abstractmethod
    def view(self) -> View:
        """Return all keys as they are now."""

    @property
    @abstractmethod
    def in_sync(self) -> tuple[str, ...]:
        """The list as it is now; empty if this etcd was made anew, or if the list cannot be
        read.
        """

    # Faults.

    @abstractmethod
    def lose_leases(self) -> None:
        """Revoke all leases by mistake, as a leader that was stuck in fdatasync did."""

    @abstractmethod
    def lose_lease_of(self, key: str) -> None:
        """Revoke the lease of one key by mistake."""

    @abstractmethod
    def extend_leases(self) -> None:
        """Start all leases anew, as a change of etcd's own leader does."""

    # Requests of machines.

    @abstractmethod
    def show_alive(self, member: str, key: str, value: Mapping[str, Any]) -> None:
        """Put the key that says that a member runs."""

    @abstractmethod
    def read(self, member: str, answer: Callable[[View], None]) -> None:
        """Read all keys."""

    @abstractmethod
    def grant(
        self, member: str, ttl_s: float, answer: Callable[[int], None], fail: Callable[[], None]
    ) -> None:
        """Grant a lease."""

    @abstractmethod
    def keep_alive(self, member: str, lease: int, answer: Callable[[bool], None]) -> None:
        """Renew a lease."""

    @abstractmethod
    def revoke(self, member: str, lease: int) -> None:
        """End a lease."""

    @abstractmethod
    def attempt(
        self, member: str, transaction: EtcdTransaction, answer: Callable[[Outcome, int], None]
    ) -> None:
        """Carry out a transaction: now, later, or never."""


def first_values(members: tuple[str, ...], min_in_sync: int) -> dict[str, Mapping[str, Any]]:
    """Return the keys of a group that has not elected a leader yet."""
    return {
        GROUP: {
            "store_id": "store",
            "id": "group",
            "min_in_sync": min_in_sync,
            "replicas": len(members),
            "protocol": 1,
        },
        **{member_key(one): {"sync": True} for one in members},
        STATE: {"term": 0, "leader": "", "request": ""},
        IN_SYNC: {"members": list(members), "term": 0, "request": ""},
    }


class EtcdBackup(NamedTuple):
    """A backup of an etcd."""

    revision: int
    rows: Mapping[str, tuple[EtcdRow, int]]


class Etcd(GroupEtcd):
    """One etcd cluster, and the ways of each machine to it.

    A request takes time to arrive, and its answer takes time to come back. Either may be lost, and
    a request that was given up may be carried out seconds later.
    """

    def __init__(
        self, events: Events, random: Random, members: tuple[str, ...], min_in_sync: int
    ) -> None:
        super().__init__()
        self.cluster = CLUSTER
        self._events = events
        self._random = random
        self._revision = 1
        self._rows: dict[str, tuple[EtcdRow, int]] = {}
        self._leases: dict[int, tuple[float, float]] = {}
        for key, value in first_values(members, min_in_sync).items():
            self._put(key, value, 0)

    # The store.

    def _put(self, key: str, value: Mapping[str, Any], lease: int) -> None:
        self._rows[key] = (EtcdRow(value, self._revision), lease)

    def _expire(self) -> None:
        dead = [lease for lease, (until, _) in self._leases.items() if until <= self._events.now]
        for lease in dead:
            self._end(lease)

    def _end(self, lease: int) -> None:
        self._leases.pop(lease, None)
        gone = [key for key, (_, owner) in self._rows.items() if owner == lease]
        if gone:
            self._revision += 1
        for key in gone:
            del self._rows[key]
            self.changed(key)

    def view(self) -> View:
        self._expire()
        return View(
            self.cluster, self._revision, {key: row for key, (row, _) in self._rows.items()}
        )

    @property
    def in_sync(self) -> tuple[str, ...]:
        return tuple(self._rows[IN_SYNC][0].value["members"]) if IN_SYNC in self._rows else ()

    def _grant(self, ttl_s: float) -> int:
        self._expire()
        lease = self._random.randrange(1, 1 << 60)
        self._leases[lease] = (self._events.now + ttl_s, ttl_s)
        return lease

    def _keep_alive(self, lease: int) -> bool:
        self._expire()
        if lease not in self._leases:
            return False
        ttl_s = self._leases[lease][1]
        self._leases[lease] = (self._events.now + ttl_s, ttl_s)
        return True

    def _attempt(self, transaction: EtcdTransaction) -> tuple[bool, int]:
        self._expire()
        for key, revision in transaction.compares:
            row = self._rows.get(key)
            if (row[0].changed if row else 0) != revision:
                return False, self._revision
        if any(put.lease and put.lease not in self._leases for put in transaction.puts):
            return False, self._revision
        self._revision += 1
        for key in transaction.deletes:
            self._rows.pop(key, None)
        for put in transaction.puts:
            self._put(put.key, put.value, put.lease)
        for key in (*transaction.deletes, *(put.key for put in transaction.puts)):
            if key != FLOOR:  # it changes all the time, and no watch tells of it
                self.changed(key)
        return True, self._revision

    def _carry_out_late(self, transaction: EtcdTransaction) -> None:
        self._attempt(transaction)

    # Faults.

    def lose_leases(self) -> None:
        self.lost_leases_at = self._events.now
        for lease in list(self._leases):
            self._end(lease)

    def lose_lease_of(self, key: str) -> None:
        self.lost_leases_at = self._events.now
        if key in self._rows:
            self._end(self._rows[key][1])

    def extend_leases(self) -> None:
        self._leases = {
            lease: (self._events.now + ttl_s, ttl_s) for lease, (_, ttl_s) in self._leases.items()
        }

    def backed_up(self) -> EtcdBackup:
        """Return a backup."""
        return EtcdBackup(self._revision, dict(self._rows))

    def put_back(self, backup: EtcdBackup) -> None:
        """Become what a backup has: the cluster id is the same, and the leases end in time."""
        self._revision, self._rows = backup.revision, dict(backup.rows)
        owners = {lease for _, lease in self._rows.values() if lease}
        self._leases = dict.fromkeys(owners, (self._events.now + 3.0, 3.0))

    def make_anew(self, members: tuple[str, ...], min_in_sync: int, group: str) -> None:
        """Become a new etcd that was started by the same command, in which an operator founds a
        group.
        """
        self._revision = 1
        self._rows.clear()
        self._leases.clear()
        for key, value in first_values(members, min_in_sync).items():
            self._put(key, {**value, "id": group} if key == GROUP else value, 0)

    def forget(self, cluster: int) -> None:
        """Become another etcd cluster, without any key."""
        self.cluster = cluster
        self._rows.clear()
        self._leases.clear()

    # Requests of machines.

    def set_member(self, member: str, *, sync: bool) -> None:
        """Make a member a voter, or an observer, as an operator does."""
        self._revision += 1
        self._put(member_key(member), {"sync": sync}, 0)

    def set_min_in_sync(self, count: int) -> None:
        """Have commits need `count` members, as an operator does."""
        self._revision += 1
        self._put(GROUP, {**self._rows[GROUP][0].value, "min_in_sync": count}, 0)

    def operate(self, transaction: EtcdTransaction) -> bool:
        """Carry out a transaction of an operator at once. Returns whether it happened."""
        return self._attempt(transaction)[0]

    def show_alive(self, member: str, key: str, value: Mapping[str, Any]) -> None:
        if not self.is_cut(member):
            self._revision += 1
            self._put(key, value, self._grant(ALIVE_S))

    def read(self, member: str, answer: Callable[[View], None]) -> None:
        self._ask(member, self.view, answer, lambda: None, may_be_late=False)

    def grant(
        self, member: str, ttl_s: float, answer: Callable[[int], None], fail: Callable[[], None]
    ) -> None:
        self._ask(member, lambda: self._grant(ttl_s), answer, fail, may_be_late=False)

    def keep_alive(self, member: str, lease: int, answer: Callable[[bool], None]) -> None:
        self._ask(member, lambda: self._keep_alive(lease), answer, lambda: None, may_be_late=False)

    def revoke(self, member: str, lease: int) -> None:
        self._ask(member, lambda: self._end(lease), lambda _: None, lambda: None, may_be_late=False)

    def attempt(
        self, member: str, transaction: EtcdTransaction, answer: Callable[[Outcome, int], None]
    ) -> None:
        held_s = self.hold(transaction)
        if held_s and not self.is_cut(member):
            self._events.after(held_s, lambda: self._carry_out_late(transaction))
            self._events.after(TIMEOUT_S, lambda: answer("unknown", 0))
            return

        def happened(result: tuple[bool, int]) -> None:
            answer("done" if result[0] else "refused", result[1])

        self._ask(
            member,
            lambda: self._attempt(transaction),
            happened,
            lambda: answer("unknown", 0),
            may_be_late=True,
        )

    def _ask(
        self,
        member: str,
        carry_out: Callable[[], Any],
        answer: Callable[[Any], None],
        fail: Callable[[], None],
        *,
        may_be_late: bool,
    ) -> None:
        fate = self._random.random()
        if self.is_cut(member) or fate < self.loss:
            if may_be_late and self._random.random() < 0.5:
                self._events.after(self._random.uniform(0.5, 6.0), carry_out)
            self._events.after(TIMEOUT_S, fail)
            return

        def arrive() -> None:
            result = carry_out()
            if self.is_cut(member) or fate > 1 - self.loss:
                self._events.after(TIMEOUT_S, fail)
            else:
                self._events.after(
                    self._random.uniform(self.least_s, self.slow_s), lambda: answer(result)
                )

        self._events.after(self._random.uniform(self.least_s, self.slow_s), arrive)
