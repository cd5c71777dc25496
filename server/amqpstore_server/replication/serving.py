"""The process of a member: follows, opens the store and serves clients when it is elected, and
follows again when it leads no longer.
"""

from __future__ import annotations

import logging
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

import trio

from amqpstore import (
    DamageError,
    DeposedError,
    MembershipError,
    Store,
    UnreadableLogError,
)
from amqpstore.options import Options
from amqpstore.replica import (
    FollowerStore,
    LogReader,
    Membership,
    log_ends,
    read_membership,
    write_membership,
)
from amqpstore.system.files import OsFiles
from amqpstore.terms import number_of
from amqpstore_server.cluster.keys import MemberIdentity
from amqpstore_server.config.checks import host_and_port
from amqpstore_server.config.config import Config
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.config_values import store_options
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.errors import EtcdError
from amqpstore_server.etcd.identity import EtcdIdentity
from amqpstore_server.listening.listening import listen
from amqpstore_server.listening.management_sockets import listen_for_requests
from amqpstore_server.loop.garbage import keep_collections_short
from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.process.service_manager import ServiceManager
from amqpstore_server.process.signals import received_signals
from amqpstore_server.process.stopping import one_cause
from amqpstore_server.reloading import Reloader, member_reloadables
from amqpstore_server.replication.companion import LeaderCompanion
from amqpstore_server.replication.controller import Controller
from amqpstore_server.replication.kept_segments import KeptSegments
from amqpstore_server.replication.leading_term import LeadingTerm, soon
from amqpstore_server.replication.member_file import MemberFile
from amqpstore_server.replication.member_log import MemberLog
from amqpstore_server.replication.proxy import Proxy
from amqpstore_server.replication.proxy_header import Scheme
from amqpstore_server.replication.settings import ClusterSettings, cluster_settings
from amqpstore_server.terms.replication_figures import FollowerFigures

_log = logging.getLogger(__name__)

Serve = Callable[[Config, Store, Callable[[], LeadingTerm]], None]
"""Serves clients as a leader, which the last argument makes it, inside trio, until it raises
DeposedError.
"""

Answer = Callable[[Sequence[socket.socket], Callable[[], FollowerFigures]], Awaitable[None]]
"""Answers about a follower on listening sockets, inside trio, until it is cancelled."""


def serve_member(
    config: Config,
    load_config: Callable[[], Config],
    serve: Serve,
    answer: Answer,
    manager: ServiceManager,
) -> None:
    """Run a member of a group until SIGTERM or SIGINT. Args: as of `App`; serve, for each
    leadership; answer, while it follows.

    Raises: as `MemberRuntime`.
    """
    settings = cluster_settings(config)
    if settings is None:
        raise ValueError("the configuration is that of a single node")
    runtime = MemberRuntime(settings, config, load_config, manager)
    # Where members speak TLS, clients are not passed on yet.
    passes_on = settings.proxy and settings.certificates is None
    runtime.run(serve, Doorways(config, answer, passes_on=passes_on))
    _log.info("stopped")


class Doorways(NamedTuple):
    """The sockets on which a follower takes clients and requests to the management API, if it
    `passes_on` these, and on which it is asked about itself.
    """

    config: Config
    answer: Answer
    passes_on: bool

    async def open_metrics(self) -> list[socket.socket]:
        """Open the sockets on which it is asked about itself. Raises: ConfigError."""
        return await listen([host_and_port(one) for one in self.config.metrics_listen])

    async def open(self) -> list[tuple[Scheme, socket.socket]]:
        """Open the sockets of clients. Raises: ConfigError."""
        if not self.passes_on:
            return []
        plain = await listen([host_and_port(one) for one in self.config.listen])
        tls = await listen([host_and_port(one) for one in self.config.tls_listen])
        management = await listen_for_requests(self.config)
        by_scheme: tuple[tuple[Scheme, Sequence[socket.socket]], ...] = (
            ("amqp", plain),
            ("amqps", tls),
            ("http", management.plain),
            ("https", management.tls),
        )
        return [(scheme, listener) for scheme, listeners in by_scheme for listener in listeners]


class _Next(Enum):
    LEAD = "lead"
    STOP = "stop"


class MemberRuntime:
    """One member of a group, for the life of a process.

    Raises, when it is opened: MembershipError, as `FollowerStore.open`, ConfigError.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        config: Config,
        load_config: Callable[[], Config],
        manager: ServiceManager,
    ) -> None:
        self._files = OsFiles()
        self._config = config
        self._load_config = load_config
        self._manager = manager
        self._directory = directory = config.data
        self._options: Options = store_options(config)
        membership = read_membership(self._files, directory)
        if membership is None:
            raise MembershipError(
                directory,
                "is not a member of a group: run `amqpstore cluster init`, or `amqpstore cluster "
                "join`, with the broker's configuration",
            )
        self._client = EtcdClient(settings.etcd, settings.prefix, EtcdIdentity(membership.cluster))
        membership = self._known(membership)
        store = self._open()
        report = store.recovery_report
        identity = MemberIdentity(
            membership.member,
            # The incarnation is new in each process: keys in etcd that a former life of this
            # member has left are told apart from its own. A leader key that names the member only
            # is not fenced against its own restart, as in LavinMQ.
            secrets.token_hex(8),
            store.store_id.hex(),
            membership.cluster,
            settings.advertise,
            settings.amqp,
            # A member that knows that it lacks something does not stand while a sound one can.
            is_damaged=bool(report.damage or report.lost or report.passed_over),
        )
        kept = KeptSegments(directory, config.cluster_keep_log_bytes)
        self._log = MemberLog(self._files, directory, store.seed, kept)
        self._log.begin(store.reader())
        self._log.covered(store.committed_lsn)
        try:
            self._controller = Controller(
                *(settings, self._client, identity, store, self._reopen, self._log),
                MemberFile(self._files, directory, membership),
            )
        except BaseException:
            store.abandon()
            raise

    def _known(self, found: Membership) -> Membership:
        """Return which etcd this member belongs to; a new member takes the one that answers."""
        # The group is written once and compared from then on: etcd made anew at the same address
        # has other keys, and a member that believed it would discard what the old group has
        # confirmed.
        if found.cluster:
            return found
        try:
            found = found._replace(cluster=self._client.read().cluster)
        except EtcdError as error:
            raise ConfigError(f"cluster_etcd: {error}") from None
        write_membership(self._files, self._directory, found)
        return found

    def _open(self) -> FollowerStore:
        return FollowerStore.open(self._directory, options=self._options)

    def _reopen(self) -> FollowerStore:
        store = self._open()
        self._log.begin(store.reader())
        self._log.covered(store.committed_lsn)
        return store

    def _reloaded(self, config: Config) -> None:
        """Take over a new configuration, also for the leaderships to come."""
        self._config = config
        self._options = store_options(config)
        self._log.keep(config.cluster_keep_log_bytes)

    def run(self, serve: Serve, doors: Doorways) -> None:
        """Follow, and lead when elected, until SIGTERM or SIGINT.

        Args: serve, called for each leadership; doors, where clients are taken while this member
        follows, and passed on.

        Raises: StoreError; DurabilityError, when the disk fails.
        """
        controller = self._controller
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        # A collection of all objects would hold a batch up for many milliseconds.
        keep_collections_short()
        controller.start()
        try:
            while trio.run(self._follow, doors) is _Next.LEAD:
                companion = controller.orders.take()
                if companion is not None and self._lead(companion, serve):
                    return
        finally:
            controller.close()
            self._client.close()

    def _ask_to_stop(self, number: int, _frame: object) -> None:
        """Note a signal that arrives while the store is opened or closed."""
        _log.info("stopping", extra={"signal": signal.Signals(number).name})
        self._controller.orders.is_stopping = True

    def _lead(self, companion: LeaderCompanion, serve: Serve) -> bool:
        """Lead one term. Returns whether the process is to end."""
        controller = self._controller
        try:
            self._serve(companion, serve)
        except DeposedError as error:
            _log.info("clients go on elsewhere", extra={"reason": error.reason})
        except (ConfigError, DamageError, UnreadableLogError) as error:
            # If the process ended, the next one would take leadership back, and end again.
            _log.error("this member cannot lead", extra={"reason": str(error)})
            controller.give_up(str(error))
        if not controller.orders.is_stopping:
            controller.follow()
        return controller.orders.is_stopping

    def _serve(self, companion: LeaderCompanion, serve: Serve) -> None:
        """Open the store, and serve clients until this member leads no longer.

        Raises: DeposedError; DurabilityError; ConfigError, DamageError, UnreadableLogError, if it
        cannot.
        """
        controller = self._controller
        # Promotion is the recovery that each start runs: there is no second road by which a log
        # becomes a store.
        store = Store.open(
            self._directory, options=self._options, term=companion.term, companion=companion
        )
        try:
            with one_cause(store):
                self._take_over(store)
                controller.opened()
                serve(
                    self._config,
                    store,
                    lambda: LeadingTerm(controller, companion, store, self._reloaded),
                )
        finally:
            # As a crash would leave it: what is not committed may be discarded.
            store.abandon()

    def _take_over(self, store: Store) -> None:
        """Have the log end where recovery has found its end. Raises: DamageError, OSError."""
        begun = number_of(store.log.position.lsn)
        if self._log.last().number + 1 != begun:
            # Recovery has rolled back what was not whole.
            ends = log_ends(store.log)
            self._log.begin(LogReader(self._files, self._directory, store.log.seed, ends))
        last = self._log.last().number
        if last + 1 != begun:
            raise DamageError(
                self._directory,
                0,
                f"batch {begun} is the next one, and the last one that can be read is {last}: this "
                "member cannot lead with a damaged end of its log. Repair it, or replace it by a "
                "new member",
            )

    def _figures(self, doors: Doorways) -> FollowerFigures:
        return self._controller.figures(
            takes_clients=doors.passes_on, least_free_bytes=self._options.least_free_bytes
        )

    async def _follow(self, doors: Doorways) -> _Next:
        """Follow until this member is elected, or is to stop."""
        controller, manager = self._controller, self._manager
        orders = controller.orders
        changed = trio.Event()
        # A checkpoint is computed in a thread: what the leader sends is not to wait for it.
        sys.setswitchinterval(LOOP_LIMITS.switch_s)
        orders.on_change = soon(lambda: changed.set())
        result = _Next.STOP
        reloader = Reloader(
            self._config, self._load_config, member_reloadables(self._reloaded), manager.ready
        )
        with received_signals() as signals:
            manager.ready("following")
            async with trio.open_nursery() as nursery:

                async def obey_signals() -> None:
                    async for number in signals:
                        if number == signal.SIGHUP:
                            manager.reloading()
                            reloader.ask()
                            continue
                        # Also for a leadership that is won at the same moment.
                        self._ask_to_stop(number, None)
                        nursery.cancel_scope.cancel()

                nursery.start_soon(obey_signals)
                nursery.start_soon(reloader.run)
                nursery.start_soon(manager.watch)
                proxy = Proxy(lambda: controller.leader, controller.connect_for_client)
                nursery.start_soon(proxy.run, await doors.open())
                if metered := await doors.open_metrics():
                    nursery.start_soon(doors.answer, metered, partial(self._figures, doors))
                # The signal may have come before this loop had its handler: `_ask_to_stop` has
                # noted it.
                if orders.is_stopping:
                    nursery.cancel_scope.cancel()
                # An order may have been given before `on_change` was set.
                while orders.companion is None and orders.failure is None:
                    await changed.wait()
                    changed = trio.Event()
                nursery.cancel_scope.cancel()
                result = _Next.LEAD
        orders.on_change = lambda: None
        if orders.failure is not None:
            raise orders.failure
        return result
