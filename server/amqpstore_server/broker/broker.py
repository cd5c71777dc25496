"""The broker: its virtual hosts, restored from the store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from amqpstore import OtherOwnerError, Store
from amqpstore.catalog.catalog import Change
from amqpstore.format.departures import Departure
from amqpstore_server.broker.definitions.deletion import deleting_all
from amqpstore_server.broker.definitions.global_parameters import GlobalParameters, is_global
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.broker.definitions.removals import leftovers
from amqpstore_server.broker.definitions.restoring import (
    queues_by_store_id,
    restore_branches,
    restore_purges,
    restore_queues,
)
from amqpstore_server.broker.definitions.rows import name_key
from amqpstore_server.broker.definitions.stored import log_unusable, rows_of
from amqpstore_server.broker.errors import NotAllowedError, NotFoundError
from amqpstore_server.broker.monitoring.counters import ChannelCounters
from amqpstore_server.broker.monitoring.departures import Departures, QueueDepartures
from amqpstore_server.broker.queues.message_sums import volatile_count
from amqpstore_server.broker.rights.permissions import Access, grants_any
from amqpstore_server.broker.rights.quotas import Limits, Quotas
from amqpstore_server.broker.rules.policy import Policies, Policy
from amqpstore_server.broker.vhost import VirtualHost
from amqpstore_server.broker.work.pumping import Pumping
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.broker.work.steps import batches

_log = logging.getLogger(__name__)

_DELETED = "deleted"
"""The mark in the row of a virtual host that is being deleted."""

_CREATED_AT_ONCE = 64
"""Virtual hosts that are created before others have their turn."""

_NOTHING = {"configure": "", "write": "", "read": ""}


class Defined(NamedTuple):
    """Definitions to store: virtual hosts; permissions by user and virtual host, None to remove
    them; and for each virtual host all its policies (True: its operator policies).
    """

    vhosts: Sequence[str] = ()
    permissions: Mapping[tuple[str, str], dict[str, Any] | None] = {}
    policies: Mapping[tuple[str, bool], Sequence[Policy]] = {}


class Broker:
    """All virtual hosts on top of one store, each a `vhost_type`."""

    vhost_type: type[VirtualHost] = VirtualHost

    def __init__(self, services: BrokerServices) -> None:
        self.services = services
        self.pumping = Pumping(services)
        self.vhosts: dict[str, VirtualHost] = {}
        self.deleted: dict[str, VirtualHost] = {}
        """Virtual hosts that are being deleted: clients cannot open them, `deleting_vhost` empties
        them.
        """
        self._past = ChannelCounters()
        self._past_departures = Departures()
        """The counts of virtual hosts that were deleted."""
        store = services.store
        names = store.definitions.rows("vhosts")
        # The store is new, or belongs to a program that uses the engine by itself: its queues are
        # not ours to serve.
        if not names:
            _check_owner(store)
            store.definitions.define([Change("vhosts", DEFAULT_VHOST, {})])
            names = {DEFAULT_VHOST: {}}
        for name, row in names.items():
            is_deleted = isinstance(row, dict) and _DELETED in row
            vhosts = self.deleted if is_deleted else self.vhosts
            vhosts[name] = self.vhost_type(name, services)
        for name, row in rows_of(store, "vhosts"):
            if vhost := self.vhosts.get(name):
                vhost.limits = row.get("limits", {})
                vhost.metadata = row.get("metadata", {})
        self.global_parameters = GlobalParameters(store)
        # Policies come before queues and exchanges, whose settings depend on them.
        for vhost, _, row in self._stored("policies"):
            vhost.policies.restore(row)
        restore_queues(store, self._any_vhost)
        for vhost, _, row in self._stored("exchanges"):
            vhost.exchange_definitions.restore(row)
        loose = {
            key: row
            for vhost, key, row in self._stored("bindings")
            if not vhost.bindings.restore(row)
        }
        if changes := leftovers(store, loose):
            _log.info("bindings of deleted names removed", extra={"count": len(changes)})
            store.definitions.define(changes)
        # Limits can drop messages only now, when dead-letter exchanges and their queues exist.
        for vhost in self.vhosts.values():
            vhost.policy_settings.apply()
        restore_branches(store, self._all_vhosts, self._any_vhost)
        restore_purges(store, self._all_vhosts)
        self._permissions: dict[str, dict[str, Any]] = dict(rows_of(store, "permissions"))
        self._accesses: dict[str, Access] = {}
        self.quotas = Quotas(self.vhost_limits)

    def vhost(self, name: str) -> VirtualHost:
        """Return the virtual host of that name. Raises: NotFoundError."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotFoundError(f"vhost '{name}' not found")
        return vhost

    def access(self, user: str, vhost: str) -> Access:
        """Return a user's permissions in a virtual host. Raises: NotFoundError, NotAllowedError."""
        self.vhost(vhost)
        row = self.permissions(user, vhost)
        key = name_key(user, vhost)
        access = self._accesses.get(key)
        if access is None:
            access = self._accesses[key] = Access(user, vhost, row)
        return access

    def permissions(self, user: str, vhost: str) -> Mapping[str, Any]:
        """Return the row of `define_permissions`. Raises: NotAllowedError, without one that grants
        anything.
        """
        row = self._permissions.get(name_key(user, vhost))
        if row is None or not grants_any(row):
            raise NotAllowedError(f"access to vhost '{vhost}' refused for user '{user}'")
        return row

    def vhost_limits(self, name: str) -> Limits:
        """Return the limits of a virtual host, by RabbitMQ's names."""
        vhost = self.vhosts.get(name)
        return vhost.limits if vhost else {}

    def define_vhost_limits(self, name: str, limits: Mapping[str, int]) -> None:
        """Set the limits of a virtual host. Durable on return. Raises: NotFoundError."""
        vhost = self.vhost(name)
        # The limits are stored first: if that fails, the old ones stay.
        self._store_vhost(vhost, limits=dict(limits))
        vhost.limits = limits

    def define_vhost_metadata(self, name: str, metadata: Mapping[str, Any]) -> None:
        """Set `description`, `tags` and `default_queue_type` of a virtual host. Durable on return.
        Raises: NotFoundError.
        """
        vhost = self.vhost(name)
        self._store_vhost(vhost, metadata=dict(metadata))
        vhost.metadata = metadata

    def _store_vhost(self, vhost: VirtualHost, **changed: Any) -> None:
        row = {"limits": dict(vhost.limits), "metadata": dict(vhost.metadata), **changed}
        row = {key: value for key, value in row.items() if value}
        self.services.store.definitions.define([Change("vhosts", vhost.name, row)])

    def counters(self) -> ChannelCounters:
        """Return what has passed through all channels since the start."""
        return self.counters_by_vhost()[1]

    def counters_by_vhost(self) -> tuple[dict[str, ChannelCounters], ChannelCounters]:
        """Return what has passed through all channels since the start: of each virtual host, by its
        name, and of all that there ever were.
        """
        by_name = {name: vhost.counters for name, vhost in self.vhosts.items()}
        deleted = [vhost.counters for vhost in self.deleted.values()]
        return by_name, ChannelCounters.sum_of([self._past, *by_name.values(), *deleted])

    def departures(self) -> Departures:
        """Return what has left all queues since the start."""
        total = Departures()
        total.add(self._past_departures)
        for vhost in self._all_vhosts:
            total.add(vhost.departures)
        return total

    def note_lost(self) -> dict[tuple[str, str], int]:
        """Count the messages that do not survive: the broker stops, and its clients have gone.

        Returns how many they are, by virtual host and queue.
        """
        lost = {
            (vhost.name, queue.name): count
            for vhost in self.vhosts.values()
            for queue in vhost.queues.values()
            if not queue.has_copies and (count := volatile_count(queue))
        }
        self.note_lost_before([(vhost, name, count) for (vhost, name), count in lost.items()])
        return lost

    def note_lost_before(self, lost: Iterable[tuple[str, str, int]]) -> None:
        """Count messages as lost with the process that they were in.

        Args: lost, virtual hosts, queues, and how many messages; some may not exist any more.
        """
        for vhost_name, name, count in lost:
            vhost = self.vhosts.get(vhost_name)
            if vhost is None:
                totals, log = self._past_departures, self.services.statistics.departures
                gone = QueueDepartures(vhost_name, name, totals, log)
                gone.note(Departure.LOST_AT_RESTART, count)
                gone.closed()
            elif queue := vhost.queues.get(name):
                queue.departures.note(Departure.LOST_AT_RESTART, count)
            else:
                vhost.note_without_queue(name, Departure.LOST_AT_RESTART, count)

    @property
    def set_aside(self) -> list[tuple[str, str]]:
        """The queues that were set aside after an internal error, as virtual host and name."""
        return [
            (vhost.name, queue.name)
            for vhost in self.vhosts.values()
            for queue in vhost.queues.values()
            if queue.is_set_aside
        ]

    def read_again(self) -> None:
        """Retry messages that could not be read. To be called about once a second."""
        counts = self.services.store.read_again()
        if not counts:
            return
        queues = queues_by_store_id(self._all_vhosts)
        for store_queue, count in counts.items():
            if queue := queues.get(store_queue.id):
                queue.came_back(count)

    def close_late_channels(self) -> bool:
        """Close channels that owe an ack for too long. To be called about once a second.

        Returns whether there were any.
        """
        return self.services.ack_timeouts.look(self.services.clock.monotonic_ms())

    # Definitions by an operator; durable on return.

    def define_permissions(self, user: str, vhost: str, row: dict[str, Any]) -> None:
        """Set a user's permissions: see `Access`. They apply to open connections at once."""
        self.vhost(vhost)
        self.define(Defined(permissions={(user, vhost): row}))

    def define(self, defined: Defined, others: Sequence[Change] = ()) -> None:
        """Store definitions in one commit with the other changes, and apply them.

        Raises: as `defining`.
        """
        for _ in self.defining(defined, others):
            pass

    def defining(self, defined: Defined, others: Sequence[Change] = ()) -> Iterator[None]:
        """Do as `define`, in steps: others may have their turn after each.

        All is stored before the first; what is left to the others is to create virtual hosts, where
        there are many, and to apply the policies.
        Raises: ValueError, TypeError or OverflowError, for values that the catalog cannot hold;
        nothing is changed then.
        """
        new = {name: None for name in defined.vhosts if name not in self.vhosts}
        # What is left of the old one would be found in the new one.
        if gone := next((name for name in new if name in self.deleted), None):
            raise ValueError(f"vhost '{gone}' is still being deleted")
        changes = [Change("vhosts", name, {}) for name in new]
        rows = {name_key(*key): row for key, row in defined.permissions.items()}
        changes += [Change("permissions", key, row) for key, row in rows.items()]
        for (name, is_operator), policies in defined.policies.items():
            known = Policies(name) if name in new else self.vhosts[name].policies
            changes += known.changes(policies, operator=is_operator)
        self.services.store.definitions.define([*changes, *others])
        self._have_permissions(rows)
        # Taken now: a virtual host may be deleted between two steps.
        changed = [
            self.vhosts[name]
            for name in dict.fromkeys(name for name, _ in defined.policies)
            if name not in new
        ]
        for vhost in changed:
            _have_policies(vhost, defined)
        left = list(new)
        try:
            for some in batches(left, _CREATED_AT_ONCE):
                self.services.work["vhosts"] = None
                changed += self._create(some, defined)
                if left:
                    yield
        finally:
            self._create(left, defined)  # those of the steps that are not taken
        for vhost in changed:
            yield from vhost.policy_settings.applying()

    def _create(self, names: Iterable[str], defined: Defined) -> list[VirtualHost]:
        """Create virtual hosts that are stored, with their policies; not those that others have
        created in the meantime.
        """
        created = []
        for name in names:
            if name not in self.vhosts:
                vhost = self.vhosts[name] = self.vhost_type(name, self.services)
                _have_policies(vhost, defined)
                created.append(vhost)
        return created

    def _have_permissions(self, rows: Mapping[str, dict[str, Any] | None]) -> None:
        for key, row in rows.items():
            if row is None:
                self._permissions.pop(key, None)
            else:
                self._permissions[key] = row
            if access := self._accesses.get(key):
                # Open connections have the object still: without a row they may do nothing.
                access.change({**_NOTHING, **(row or {})})

    def granted(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yield all permissions: user, virtual host, and the row of `define_permissions`. One that
        only restricts routing keys waits for the permission that it restricts: see `grants_any`.
        """
        for key, row in self._permissions.items():
            user, _, vhost = key.partition("\0")
            yield user, vhost, row

    def granted_to(self, user: str) -> list[str]:
        """Return the virtual hosts in which a user has permissions."""
        vhosts = (*self.vhosts, *self.deleted)
        return [vhost for vhost in vhosts if name_key(user, vhost) in self._permissions]

    def begin_deleting(self, name: str) -> None:
        """Delete a virtual host with its permissions and policies for everybody; `deleting_vhost`
        then removes what is in it, once its connections are closed. Durable on return.

        Raises: NotFoundError.
        """
        vhost = self.vhost(name)
        # All rows go in one commit: permissions that a crash leaves behind would be valid in a
        # later virtual host of this name.
        rows = {name_key(user, where): None for user, where, _ in self.granted() if where == name}
        changes = [Change("vhosts", name, {_DELETED: True})]
        changes += [Change("permissions", key, None) for key in rows]
        for is_operator in (False, True):
            changes += vhost.policies.changes([], operator=is_operator)
        self.services.store.definitions.define(changes)
        self.deleted[name] = self.vhosts.pop(name)
        self._have_permissions(rows)
        for key in rows:
            self._accesses.pop(key, None)

    def deleting_vhost(self, name: str) -> Iterator[None]:
        """Remove what is in a virtual host of `deleted`, in steps, and then its name."""
        yield from deleting_all(self.deleted[name])
        # Last: a crash before it leaves the mark, with which the next start goes on.
        self.services.store.definitions.define([Change("vhosts", name, None)])
        self._past.add(self.deleted[name].counters)
        self._past_departures.add(self.deleted[name].departures)
        del self.deleted[name]

    @property
    def _all_vhosts(self) -> tuple[VirtualHost, ...]:
        """The virtual hosts, those that are being deleted among them."""
        return (*self.vhosts.values(), *self.deleted.values())

    def _any_vhost(self, name: str) -> VirtualHost | None:
        return self.vhosts.get(name) or self.deleted.get(name)

    def _stored(self, table: str) -> Iterator[tuple[VirtualHost, str, Any]]:
        """Yield the usable rows of a table, each with its virtual host and its key."""
        for key, row in rows_of(self.services.store, table):
            if is_global(row):
                continue
            if vhost := self._any_vhost(row["vhost"]):
                yield vhost, key, row
            else:
                log_unusable(table, key, f"there is no virtual host {row['vhost']!r}")

    def end_purges(self) -> None:
        """End all purges that could be undone: the disk is nearly full, and this frees some."""
        if not self.services.store.purged:
            return
        for vhost in self._all_vhosts:
            for queue in vhost.queues.values():
                queue.purges.end_all()


def _have_policies(vhost: VirtualHost, defined: Defined) -> None:
    for is_operator in (False, True):
        policies = defined.policies.get((vhost.name, is_operator))
        if policies is not None:
            vhost.policies.have(policies, operator=is_operator)


def _check_owner(store: Store) -> None:
    """Raises: OtherOwnerError, if the store has queues but no virtual hosts: it belongs to a
    library.
    """
    if queue := next(iter(store.queues.values()), None):
        found = f"it has no virtual hosts, but a queue defined as {queue.definition!r}"
        raise OtherOwnerError(store.directory, "a broker's", found)
