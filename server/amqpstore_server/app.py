"""The broker as a program: starts and stops its parts, in order."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import trio

from amqpstore import DurabilityError, Store
from amqpstore.system.datasyncs import KernelDatasyncs
from amqpstore_server.administration.admin_socket import AdminSocket, admin_socket
from amqpstore_server.administration.definitions import Definitions, load
from amqpstore_server.administration.first_users import define_administrator, define_first
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.work import Slow, Work, carry_out, done
from amqpstore_server.amqp.product import Product
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.exchanges import EXCHANGE_TYPES, plugged_in
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.work.events import BrokerEvent
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.clients.limits import Limits
from amqpstore_server.config.checks import host_and_port
from amqpstore_server.config.config import Config
from amqpstore_server.config_values import (
    client_limits,
    memory_watermark_bytes,
    store_options,
    trails_of,
)
from amqpstore_server.listening.doors import Doors
from amqpstore_server.listening.listening import Acceptor, listen
from amqpstore_server.listening.management_sockets import (
    ManagementSockets,
    listen_for_management,
    url_of,
)
from amqpstore_server.listening.proxied_listening import behind_headers
from amqpstore_server.logins.login_checks import LoginChecks
from amqpstore_server.logins.logins import Logins, tokens_of
from amqpstore_server.logins.users import Users
from amqpstore_server.loop.alarms import Alarms
from amqpstore_server.loop.committer import Committer
from amqpstore_server.loop.garbage import YoungCollector, keep_collections_short
from amqpstore_server.loop.holds import LoopHolds
from amqpstore_server.loop.loop_limits import LOOP_LIMITS, LoopLimits
from amqpstore_server.loop.rounds import LoopRounds
from amqpstore_server.loop.socket_connection import SocketConnection
from amqpstore_server.loop.sockets import Sockets
from amqpstore_server.loop.ticks import Ticks
from amqpstore_server.loop.tls import certificates_of
from amqpstore_server.loop.trimming import share_one_arena
from amqpstore_server.process.service_manager import ServiceManager
from amqpstore_server.process.signals import prepare_signals, received_signals
from amqpstore_server.process.stopping import drain, one_cause, say_goodbye
from amqpstore_server.reloading import Reloader, reloadables_of
from amqpstore_server.reports.recovery_reports import keep_report
from amqpstore_server.statistics.sampler import Sampler
from amqpstore_server.statistics.statistics import Statistics
from amqpstore_server.statistics.volatile import VolatileFile
from amqpstore_server.terms.serving_term import ServingTerm, SingleNode

if TYPE_CHECKING:
    from amqpstore_server.logins.certificates import Certificates
    from amqpstore_server.management.door import ManagementDoor

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_LAZY_COMMIT_S = 0.05
"""The longest time that acks wait for an fdatasync if nothing else needs one."""
_STOP_S = 60.0
"""The time to ask of the service manager beyond the drain, for the last checkpoint."""
_LONG_S = 3600.0
_CLOCK_LOOK_S = 1.0
_DAY_S = 86_400.0


def serve(
    config: Config,
    load_config: Callable[[], Config],
    on_ready: Callable[[list[str], str, str], None],
) -> None:
    """Run the broker until SIGTERM or SIGINT.

    Args: load_config, reads the configuration again, on SIGHUP; on_ready, called with the URLs it
    listens on, the data directory, and the password of an administrator that was added, or nothing.
    Raises: StoreError, ConfigError (it cannot listen on an address), DefinitionsError, OSError.
    """
    prepare_signals()
    share_one_arena()
    certificates = certificates_of(config)
    definitions = load(config.definitions) if config.definitions else None
    manager = ServiceManager(os.environ)
    startup = Startup(config, load_config, definitions, certificates, on_ready, manager)
    if config.cluster_name:
        # Imported here: a single node has none of it.
        from amqpstore_server.management.follower_door import answer
        from amqpstore_server.replication.serving import serve_member

        serve_member(config, load_config, startup.lead, answer, manager)
        return
    store = Store.open(config.data, options=store_options(config))
    try:
        with one_cause(store):
            trio.run(_run, startup, store, SingleNode())
    except BaseException:
        store.abandon()
        raise
    store.close()
    _log.info("stopped")


class Startup(NamedTuple):
    """All that a broker starts with, besides its store: see `serve`."""

    config: Config
    load_config: Callable[[], Config]
    definitions: Definitions | None
    certificates: Certificates | None
    on_ready: Callable[[list[str], str, str], None]
    manager: ServiceManager

    def lead(self, config: Config, store: Store, lead: Callable[[], ServingTerm]) -> None:
        """Serve clients as a leader. Args: config, in force now; lead, begins the leadership,
        inside trio.

        Raises: DeposedError, when another member may lead, and what `serve` raises.
        """

        async def run() -> None:
            await _run(self._replace(config=config), store, lead())

        trio.run(run)


async def _run(startup: Startup, store: Store, term: ServingTerm) -> None:
    config, load_config, definitions, certificates, on_ready, manager = startup
    if config.management_listen or config.management_tls_listen or config.metrics_listen:
        # Now, and not while clients wait.
        import amqpstore_server.management.door  # noqa: F401
    app = App(config, store, definitions, certificates, load_config, manager, term)
    app.volatile_file.count_lost(app.broker)
    # A queue starts by dropping expired messages, so a queue that fails there is in the report.
    app.services.run_timers()
    keep_report(store, datetime.now(UTC), app.broker.set_aside)
    keep_collections_short()
    # Last of what takes long: whoever finds a port open is answered at once.
    proxies = [host_and_port(one) for one in config.proxy_protocol]
    plain = await listen([host_and_port(one) for one in config.listen], proxies)
    tls = await listen([host_and_port(one) for one in config.tls_listen], proxies)
    management = await listen_for_management(config)
    opened = (*plain, *tls, *management.plain, *management.tls)
    hosts = [listener.getsockname()[0] for listener in opened]
    password = define_administrator(app.broker, app.users, hosts)
    # Not before: the signals would not be looked at while definitions are imported, and until here
    # the process can simply end.
    with received_signals() as signals:
        urls = [url_of("amqp", one) for one in plain] + [url_of("amqps", one) for one in tls]
        with admin_socket(store.directory) as admin:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(app.run, plain, signals, tls, admin, management)
                on_ready(urls, store.directory, password)
                manager.ready(" ".join(urls))


class App:
    """The tasks of a running broker, on an open store. Create it inside trio, for its clock.

    Timers use the store's clock, whose monotonic time advances at the same rate as trio's.
    Args: load_config, reads the configuration again, on SIGHUP; without it only the files that the
    configuration names are read again. service_manager, is told of stops and reloads. term, what it
    has to wait for besides its disk, and for how long it serves. loop_limits, of its rounds.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        definitions: Definitions | None,
        certificates: Certificates | None = None,
        load_config: Callable[[], Config] | None = None,
        service_manager: ServiceManager | None = None,
        term: ServingTerm | None = None,
        loop_limits: LoopLimits = LOOP_LIMITS,
    ) -> None:
        self._service_manager = service_manager or ServiceManager({})
        self._term = term = term or SingleNode()
        self._limits = client_limits(config)
        services = BrokerServices(
            store,
            clock=store.clock,
            random=secrets.SystemRandom().random,
            make_name=partial(secrets.token_urlsafe, 16),
            exchange_types={**EXCHANGE_TYPES, **plugged_in()},
            name_rule=config.names,
            node=config.node_name or f"amqpstore@{socket.gethostname()}",
            consumer_timeout_ms=config.consumer_timeout_s * 1000,
            purge_undo_s=config.purge_undo_s,
            cpu_s=time.thread_time,
            elapsed_s=time.perf_counter,
            trails=trails_of(config, store),
        )
        self.services = services
        # Created first: it checks whether the store belongs to a broker.
        self.broker = Broker(services)
        self.users = Users(store)
        self.broker.quotas.of_user = self.users.limits_of
        self.connections: set[SocketConnection] = set()
        self.administration = Administration(
            self.broker,
            self.users,
            lambda: [connection.amqp for connection in self.connections],
            trio.current_time,
        )
        self._sampler = Sampler(
            self.broker, lambda: [connection.amqp for connection in self.connections]
        )
        self.statistics = Statistics(self.broker, self._sampler)
        self.volatile_file = VolatileFile(store.directory, store.clock)
        self._holds = LoopHolds(services.work)
        if definitions is not None:
            done(self._importing(definitions, By(config.definitions, "start")))
        define_first(self.broker, self.users, config.default_user, config.default_password)
        self.sockets = Sockets(loop_limits)
        self._rounds = LoopRounds(self.broker, self.sockets, term, loop_limits)
        self.committer = Committer(
            store,
            self.sockets.wake,
            self._rounds.wake,
            max_pending_bytes=loop_limits.max_pending_bytes,
            datasyncs=KernelDatasyncs.open(self.sockets.signal),
        )
        services.flush = self.committer.flush
        watermark = memory_watermark_bytes(config)
        self._alarms = Alarms(store, watermark, self._free_caches, tell=self._tell_alarm, term=term)
        # The free disk space has to be known before the first publish.
        self.committer.housekeep()
        self._logins = Logins(config, self.users, tokens_of(config), certificates)
        self._certificates = certificates
        self._tls_handshakes = LoginChecks()
        self._doors = Doors(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._doors.limit(
            config.max_connections, config.max_connections_per_peer, config.accepts_per_s
        )
        self.reloader = Reloader(
            config,
            load_config or (lambda: config),
            reloadables_of(
                self._import_again,
                certificates,
                self._logins,
                services,
                self._alarms,
                self._doors,
                self._set_limits,
                term.reloaded,
            ),
            on_reloaded=self._reloaded,
        )
        self.ticks = Ticks(
            self.broker,
            self.committer,
            self._alarms,
            self._rounds.wake,
            self.connections,
            lambda: self.reloader.config.connections_bytes,
            loop_limits,
        )
        self._product = Product(config.product, config.version or version("amqpstore"))
        self._management: ManagementDoor | None = None

    def _tell_alarm(self, resource: str, is_low: bool) -> None:
        kind = "set" if is_low else "cleared"
        event = BrokerEvent(f"alarm.{kind}", {"source": resource, "node": self.services.node})
        self.services.events.happened("", event)

    async def run(
        self,
        plain: list[socket.socket],
        signals: AsyncIterator[int],
        tls: Sequence[socket.socket] = (),
        admin: socket.socket | None = None,
        management: ManagementSockets | None = None,
    ) -> None:
        """Serve until a signal asks to stop, then stop in this order: listeners, clients, log.

        Args: plain, tls, the sockets on which clients are accepted without TLS and with it; admin,
        the one for operators, if there is one; management, those of the management API.
        Raises: DurabilityError, as soon as the disk fails.
        """
        # In this order: the collection is part of the turn.
        trio.lowlevel.add_instrument(YoungCollector(self.sockets.limits))
        self._holds.begin()
        trio.lowlevel.add_instrument(self._holds)
        with contextlib.closing(self.sockets), contextlib.closing(self.committer):
            if management is not None and any(management):
                self._management = self._management_door(plain, tls, management)
            await self._serve(plain, signals, tls, admin)

    def _management_door(
        self,
        plain: Sequence[socket.socket],
        tls: Sequence[socket.socket],
        sockets: ManagementSockets,
    ) -> ManagementDoor:
        # Imported here: a broker without it starts sooner, and needs less memory.
        from amqpstore_server.management.context import Listener, ManagementContext
        from amqpstore_server.management.door import ManagementDoor
        from amqpstore_server.metrics.source import MetricsSource

        listeners = []
        for protocol, has_tls, opened in (
            ("amqp", False, plain),
            ("amqp/ssl", True, tls),
            ("http", False, sockets.plain),
            ("https", True, sockets.tls),
            ("http/prometheus", False, sockets.metrics),
        ):
            for sock in opened:
                host, port = sock.getsockname()[:2]
                listeners.append(Listener(protocol, host, port, has_tls))
                if protocol == "http/prometheus":
                    _log.info("metrics", extra={"url": f"{url_of('http', sock)}/metrics"})
                elif protocol.startswith("http"):
                    _log.info("management API", extra={"url": url_of(protocol, sock)})
        context = ManagementContext(
            broker=self.broker,
            administration=self.administration,
            connections=lambda: self.connections,
            logins=self._logins,
            carry_out=self.carry_out,
            wake=self._rounds.wake,
            sockets=self.sockets,
            config=lambda: self.reloader.config,
            product=self._product,
            alarms=self._alarms,
            metrics=MetricsSource(
                self.broker,
                self._sampler,
                self._alarms,
                self._holds,
                lambda: [connection.amqp for connection in self.connections],
                self._product,
                self.services.node,
                lambda: self.reloader.config.metrics_max_objects,
                self._term.figures,
            ),
            statistics=self.statistics,
            node=self.services.node,
            certificates=self._certificates,
            listeners=tuple(listeners),
        )
        return ManagementDoor(context, sockets, self._term.passed_on_requests(sockets), self._doors)

    async def _serve(
        self,
        plain: Sequence[socket.socket],
        signals: AsyncIterator[int],
        tls: Sequence[socket.socket],
        admin: socket.socket | None,
    ) -> None:
        async with trio.open_nursery() as service:
            service.start_soon(self._rounds.run, self.committer)
            service.start_soon(self._term.show_progress)
            service.start_soon(self._term.watch, self.committer.watch)
            service.start_soon(self._term.step_down, self.connections)
            service.start_soon(self.ticks.run)
            service.start_soon(self._commit_lazily)
            service.start_soon(self._run_timers)
            service.start_soon(self._sampler.passes, trio.sleep)
            service.start_soon(
                self.volatile_file.keep, lambda: self._sampler.volatile, trio.sleep, _in_thread
            )
            service.start_soon(self.reloader.run)
            service.start_soon(self._service_manager.watch)
            service.start_soon(self.carry_out, self.administration.delete_rest())
            if admin is not None:
                service.start_soon(AdminSocket(admin, self.administration, self.carry_out).run)
            if self._management is not None:
                service.start_soon(self._management.run)
            if self._certificates is not None:
                service.start_soon(self._watch_certificates, self._certificates)
            async with trio.open_nursery() as clients:
                async with trio.open_nursery() as doors:
                    plain, tls = self._term.with_passed_on(plain, tls)
                    for opened, certificates in ((plain, None), (tls, self._certificates)):
                        for listener in opened:
                            behind = behind_headers(listener, doors)
                            doors.start_soon(self._accept, behind, clients, certificates)
                    if not self._term.is_stopping:
                        await self._wait_for_stop(signals)
                    await self._term.stop()
                    doors.cancel_scope.cancel()
                clients.start_soon(self._stop_clients, clients.cancel_scope)
                clients.start_soon(self._stop_at_once, signals, clients.cancel_scope)
            self.volatile_file.write(self.broker.note_lost(), is_final=True)
            self.services.statistics.departures.write()
            self.committer.stop()
            if self.services.trails is not None:
                self.services.trails.close()
            service.cancel_scope.cancel()

    async def _wait_for_stop(self, signals: AsyncIterator[int]) -> None:
        """Obey signals until one asks to stop."""
        async for number in signals:
            if number != signal.SIGHUP:
                _log.info("stopping", extra={"signal": signal.Signals(number).name})
                return
            self._service_manager.reloading()
            self.reloader.ask()

    async def _stop_clients(self, clients: trio.CancelScope) -> None:
        """End all connections: see `stopping`."""
        if self._management is not None:
            await self._management.stop()
        drain_s = self.reloader.config.drain_s
        status = f"waiting for {len(self.connections)} connections"
        self._service_manager.stopping(status, drain_s + _STOP_S)
        if left := await drain(self.connections, drain_s):
            _log.warning("closing connections before they are quiet", extra={"count": left})
        if silent := await say_goodbye(self.connections):
            _log.warning("clients did not answer the close", extra={"count": silent})
        if self._management is not None:
            await self._management.finish()
        clients.cancel()

    async def _stop_at_once(self, signals: AsyncIterator[int], clients: trio.CancelScope) -> None:
        """Obey a second signal to stop: do not wait for clients."""
        async for number in signals:
            if number != signal.SIGHUP:
                _log.warning("stopping at once", extra={"signal": signal.Signals(number).name})
                clients.cancel()

    async def _watch_certificates(self, certificates: Certificates) -> None:
        """Log each day which certificates expire soon."""
        while True:
            certificates.log_expiry(datetime.now(UTC))
            await trio.sleep(_DAY_S)

    def _reloaded(self, outcome: str) -> None:
        self._rounds.wake()
        self._service_manager.ready(outcome)

    def _importing(self, definitions: Definitions, by: By) -> Work[list[str]]:
        return self.administration.import_definitions(by, definitions, replaces_policies=True)

    async def _import_again(self, definitions: Definitions, file: str) -> None:
        await self.carry_out(self._importing(definitions, By(file, "SIGHUP")))

    async def carry_out(self, work: Work[ResultT]) -> ResultT:
        """Carry out the work of an operator; clients have their turn after each of its steps."""
        try:
            return await carry_out(work, self._after_step)
        finally:
            self._rounds.wake()
            await self._term.defined()

    async def _after_step(self, slow: Slow | None) -> Any:
        self._rounds.wake()
        if slow is None:
            return await trio.lowlevel.checkpoint()
        return await trio.to_thread.run_sync(slow)

    def _set_limits(self, limits: Limits) -> None:
        self._limits = limits

    async def _accept(
        self, listener: socket.socket, clients: trio.Nursery, tls: Certificates | None = None
    ) -> None:
        admit = partial(self._admit, clients, tls)
        acceptor = Acceptor(listener, self._doors.admission, admit, self.sockets.ends_come_first)
        self.sockets.let_accept(listener, acceptor)
        await acceptor.run()

    def _admit(
        self, clients: trio.Nursery, tls: Certificates | None, client: socket.socket, _host: str
    ) -> bool:
        """Start serving a client, or refuse it. Returns whether there was room for it before."""
        had_room = self._doors.has_room
        try:
            client.setblocking(False)
            # Nagle's algorithm would hold a small frame back until the one before it is acked,
            # which the kernel of the client may delay by 40 ms or more.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = SocketConnection(
                client,
                self.broker,
                self._logins,
                self._limits,
                self.sockets,
                self._rounds,
                self.committer,
                self._alarms,
                self._product,
                tls.context if tls else None,
                self._tls_handshakes,
            )
        except Exception as error:  # noqa: BLE001
            if not isinstance(error, OSError):  # it closed before it was served
                _log.exception("client rejected")
            client.close()
            return had_room
        now = trio.current_time()
        visitor = self._doors.enter(connection.host, connection, now)
        if visitor is None:
            client.close()
        else:
            connection.amqp.log.accepted(self._doors.log_limit, visitor.peer, now)
            self.connections.add(connection)
            clients.start_soon(self._serve_client, connection)
            connection.begin(visitor)
        return had_room

    async def _serve_client(self, connection: SocketConnection) -> None:
        try:
            await connection.run()
        except* DurabilityError:
            raise
        except* Exception:
            # An internal error with one client must not affect the others.
            connection.amqp.log.exception("connection failed")
        finally:
            self.connections.discard(connection)

    def _free_caches(self) -> None:
        """Free caches, whose content can be computed again."""
        for vhost in self.broker.vhosts.values():
            vhost.router.changed()
        for connection in self.connections:
            connection.amqp.free_caches()

    async def _commit_lazily(self) -> None:
        while True:
            await trio.sleep(_LAZY_COMMIT_S)
            self.committer.commit()

    async def _run_timers(self) -> None:
        """Run timers when they are due: expiry, above all."""
        sooner = trio.Event()
        # Not `sooner.set` itself: there is another event each time.
        self.services.timers.on_sooner = self.services.dates.on_sooner = lambda: sooner.set()
        while True:
            wait_ms = self.services.ms_to_next_timer()
            # Nothing signals a change of the wall clock, so it is checked regularly while anything
            # waits for a date.
            wait_s = _LONG_S if wait_ms is None else min(wait_ms / 1000, _CLOCK_LOOK_S)
            with trio.move_on_after(wait_s):
                await sooner.wait()
            sooner = trio.Event()
            if self.services.run_timers():
                self.services.work["timers"] = None
                self._rounds.wake()
                # Timers that are due again at once must give the other tasks a turn.
                await trio.lowlevel.checkpoint()


async def _in_thread(work: Callable[[], None]) -> None:
    await trio.to_thread.run_sync(work, abandon_on_cancel=True)
