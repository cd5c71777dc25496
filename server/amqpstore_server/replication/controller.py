"""The controller: has the state machine of one member, tells it what happens, and has its effects
carried out.

Whatever thread hears of something tells the state machine under one lock, and hands its effects to
the threads that carry them out. Nothing is waited for under the lock, neither a disk nor a peer.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from amqpstore import DiskFullError
from amqpstore.replica import FollowerStore
from amqpstore.system.durability import reason_of
from amqpstore_server.cluster.codec import encode, read_follower, read_leader
from amqpstore_server.cluster.effects import (
    Attempt,
    BlockPublishers,
    BrokerEffect,
    CatchUp,
    CheckpointUpTo,
    Committed,
    Dial,
    DiskEffect,
    Effect,
    EtcdEffect,
    Exit,
    HangUp,
    LinkEffect,
    Open,
    Send,
    SendCopy,
    StepDown,
    TellOperator,
    WriteNotes,
)
from amqpstore_server.cluster.following import Stream
from amqpstore_server.cluster.frames import (
    Beat,
    Definition,
    Frame,
    Hello,
    ReceivedFile,
    ShippedBatch,
    StorePiece,
)
from amqpstore_server.cluster.keys import MemberIdentity, View
from amqpstore_server.cluster.member import GroupMember
from amqpstore_server.cluster.tenure import Outcome
from amqpstore_server.cluster.timing import Health
from amqpstore_server.etcd.client import EtcdClient
from amqpstore_server.etcd.driver import EtcdDriver
from amqpstore_server.etcd.lanes import Lane
from amqpstore_server.listening.proxy_protocol import ProxyHeaderError
from amqpstore_server.replication.catching_up import catch_up
from amqpstore_server.replication.companion import LeaderCompanion
from amqpstore_server.replication.copying import CopyCounts, send_copy
from amqpstore_server.replication.disk_lane import DiskLane, Follow
from amqpstore_server.replication.handshake import HandshakeError, PeerSession, Purpose
from amqpstore_server.replication.links import MAX_CONTENT_BYTES, Link, MemberSocket
from amqpstore_server.replication.listening import MemberDialer, MemberListener
from amqpstore_server.replication.member_file import MemberFile
from amqpstore_server.replication.member_log import MemberLog
from amqpstore_server.replication.orders import Orders
from amqpstore_server.replication.proxied_clients import ProxiedListeners, ProxiedSocket
from amqpstore_server.replication.proxy import KnownLeader
from amqpstore_server.replication.settings import ClusterSettings
from amqpstore_server.terms.replication_figures import FollowerFigures

_log = logging.getLogger(__name__)

_TICK_S = 0.05
_EXIT_UNFIT = 70
_LAST_WORDS_S = 0.3
"""How long a process that hangs goes on: what it has sent must leave."""
_RESIGNED_S = 2.0
"""How long a stop waits until etcd has heard of it."""

_Result = TypeVar("_Result")


class Controller:
    """Runs one member, from `start` to `close`.

    Args: store, that of the member, open; reopen, opens it again after a leadership. `orders` are
    for the thread that has the store of a leader.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        client: EtcdClient,
        identity: MemberIdentity,
        store: FollowerStore,
        reopen: Callable[[], FollowerStore],
        log: MemberLog,
        file: MemberFile,
    ) -> None:
        self.orders = Orders()
        self.proxied_listeners = ProxiedListeners()
        self.copies = CopyCounts()
        self.refused_frames = 0
        """How many links have ended because what came was not the peer's next frame."""
        self.leader: KnownLeader | None = None
        """Whom etcd names as the leader."""
        self.log = log
        self.turned_at: float | None = None
        """The time at which the event loop that serves clients last turned; None while there is
        none.
        """
        self.opening_since: float | None = None
        """The time at which the store of a leader began to be opened; None once clients are served.
        """
        self.is_disk_low = False
        """Whether the disk of a leader is nearly full."""
        self.serves_until = 0.0
        """The time until which no other member can lead, by the monotonic clock, if this one does.
        """
        self.member = GroupMember(
            *(identity, store.term, log, time.monotonic(), _make_request, settings.timing),
            file.notes,
        )
        self._file = file
        self._notes = Lane("member file", self._note, lambda _, __: False)
        self._settings = settings
        self._directory = store.directory
        self._lock = threading.Lock()
        self._looking_up = threading.Lock()
        """Held while a follower's batches are looked up in the log: that reads whole segments, and
        two at a time would take twice the processor from those who serve clients.
        """
        self._secret: bytes | None = None
        self._links: dict[int, Link] = {}
        self._dialled: set[int] = set()
        self._link_count = 0
        self._encoded: tuple[Frame, tuple[bytes, bytes]] | None = None
        self._companion: LeaderCompanion | None = None
        self._has_released = False
        """Whether the store was asked for by a leadership, and is not back yet."""
        self._attempts: set[str] = set()
        self._standing: dict[str, object] = {}
        self._closed = threading.Event()
        self._dialer = MemberDialer(settings)
        # etcd may have answered, and MEMBER be written, before all of them are there: whatever
        # their threads have to tell waits for that.
        with self._lock:
            self._lane = DiskLane(store, reopen, log, self)
            self._etcd = EtcdDriver(client, self, settings.timing.lease_s, self._is_fit)
            self._listener = MemberListener(settings, self)
        self._ticks = threading.Thread(target=self._tick, name="controller", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._ticks.start()

    def figures(self, *, takes_clients: bool, least_free_bytes: int) -> FollowerFigures:
        """Return what metrics tell of this member while it follows; it may wait for the disk."""
        member, leader = self.member, self.leader
        following = member.following
        is_copying = following.state is Stream.COPYING
        return FollowerFigures(
            leader=leader.address if leader is not None else "",
            takes_clients=takes_clients,
            is_streaming=following.state is Stream.STREAMING,
            batch=self.log.last().number,
            lag_batches=member.lag_batches,
            received_bytes=following.received_bytes if is_copying else 0,
            copy_bytes=following.copy_bytes if is_copying else 0,
            waits=bool(member.waits),
            is_etcd_refused=member.is_etcd_refused,
            is_damaged=member.identity.is_damaged,
            free_bytes=self.log.free_bytes(),
            least_free_bytes=least_free_bytes,
            refused_frames=self.refused_frames,
        )

    def close(self) -> None:
        """End all threads; the store of a follower is closed. What was resigned is known to etcd,
        if it answers.
        """

        # A follower says goodbye, so that its leader does not wait for its acks until a timeout. A
        # leader has been told by `stop` before, and has handed over by now.
        def stop(member: GroupMember, now: float) -> None:
            if member.leader is None:
                member.stop(now)

        self._tell(stop)
        until = time.monotonic() + _RESIGNED_S
        # The wait has a limit: a stop must not hang where etcd does.
        while self._attempts and time.monotonic() < until:
            time.sleep(_TICK_S)
        self._closed.set()
        self._ticks.join()
        self._listener.close()
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.hang_up()
        self._lane.close()
        self._etcd.close()
        self._notes.close()
        try:
            self._file.write(self.member.notes)
        except OSError as error:
            _log.warning("MEMBER is not up to date", extra={"reason": reason_of(error)})

    # The state machine.

    def _tell(self, happen: Callable[[GroupMember, float], _Result]) -> _Result:
        """Let something happen to the state machine, under its lock, and obey it."""
        with self._lock:
            try:
                # Under the lock, or two threads could bring their times in the wrong order.
                result = happen(self.member, time.monotonic())
                self._obey()
            except BaseException as error:
                # What it would have asked for is unknown: this process cannot go on.
                self.orders.fail(error)
                raise
        return result

    def _tick(self) -> None:
        def tick(member: GroupMember, now: float) -> None:
            member.tick(now, self._health())
            self.serves_until = member.leader.serves_until() if member.leader else 0.0

        while not self._closed.wait(_TICK_S):
            self._tell(tick)
            self._log_changes()

    def _log_changes(self) -> None:
        """Log what this member is, when that has changed."""
        member, leader = self.member, self.member.leader
        standing: dict[str, object] = {"role": member.role.name.lower()}
        if leader is None:
            standing["streaming"] = member.following.state is Stream.STREAMING
        else:
            waits_for = sorted(leader.waits_for - {*leader.members})
            standing |= {"term": leader.term, "in_sync": " ".join(leader.members)}
            standing |= {"joining": " ".join(waits_for)} if waits_for else {}
        if standing != self._standing:
            self._standing = standing
            _log.info("member", extra=standing)

    def _health(self) -> Health:
        companion = self._companion
        began = [self._lane.busy_since, companion.busy_since if companion else None]
        busy_since = min((at for at in began if at is not None), default=None)
        # Who waits for others with the event loop in hand is not ill.
        waits = companion is not None and companion.is_waiting
        turned_at = None if waits else self.turned_at
        is_disk_low = self.is_disk_low or self._lane.is_disk_low
        return Health(busy_since, turned_at, self.opening_since, is_disk_low)

    def _is_fit(self) -> bool:
        return self._health().is_fit(time.monotonic(), self._settings.timing)

    def _obey(self) -> None:
        effects = self.member.effects
        while effects:
            todo, effects[:] = list(effects), []
            for effect in todo:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, EtcdEffect):
            if isinstance(effect, Attempt):
                # Before it is sent: the answer may come in another thread before this one goes on.
                self._attempts.add(effect.transaction.request)
            self._etcd.carry_out(effect)
        elif isinstance(effect, LinkEffect):
            self._carry_out_on_link(effect)
        elif isinstance(effect, DiskEffect):
            self._has_released |= isinstance(effect, Open)
            # A leader's own store learns from its companion what is committed.
            if not isinstance(effect, CheckpointUpTo) or self._companion is None:
                self._lane.put(effect)
        else:
            self._carry_out_in_broker(effect)

    def _carry_out_on_link(self, effect: LinkEffect) -> None:
        match effect:
            case Send(link, frame):
                self._send(link, frame)
            case HangUp(link):
                self._hang_up(link)
            case CatchUp() | SendCopy():
                self._send_much(effect)

    def _carry_out_in_broker(self, effect: BrokerEffect | WriteNotes) -> None:
        match effect:
            case Committed(seq, _):
                if self._companion is not None:
                    self._companion.committed(seq)
            case BlockPublishers(is_blocked):
                self.orders.block(is_blocked=is_blocked)
            case StepDown(reason):
                self._step_down(reason)
            case Exit(reason):
                # Threads of this process hang, so it cannot end in order.
                _log.critical("the process ends", extra={"reason": reason})
                # First, so that followers see the connection end and need not wait out the lease
                # of a process that is about to exit.
                for number in list(self._links):
                    self._hang_up(number)
                # Not `sys.exit`, which waits for threads that hang in a system call.
                threading.Timer(_LAST_WORDS_S, os._exit, (_EXIT_UNFIT,)).start()
            case TellOperator(text):
                _log.warning("%s", text)
            case WriteNotes():
                self._notes.put(effect)

    def _step_down(self, reason: str) -> None:
        _log.warning("this member leads no longer", extra={"reason": reason})
        # Followers must not ack what this member still sends: it may lead no longer by then.
        for number in list(self._links):
            self._hang_up(number)
        if self._companion is not None:
            self._companion.depose(reason)
        self.orders.depose(reason)
        # With `Open` in the lane already, the store is opened and closed in `serving`, which then
        # asks for `Follow` itself; asked here too, it would be opened twice.
        if not self._has_released:
            # The store has not been asked for yet.
            self._lane.put(Follow())

    def _note(self, effect: WriteNotes) -> None:
        """Write MEMBER, in the lane's thread: nothing else waits for that."""
        try:
            self._file.write(effect.notes)
        except OSError as error:
            # The next ones are tried again. Without the first, this member does not stand.
            _log.error("MEMBER cannot be written", extra={"reason": reason_of(error)})
            return
        # Only once it is durable: another process with the same MEMBER is known by its generation,
        # and one that a power cut takes back would be given twice.
        self._tell(lambda member, _: member.noted(effect.notes))

    # The leader's store: see `Leading` and `Orders`.

    def opened(self) -> None:
        """The leader's store is open."""
        self._tell(lambda member, now: member.opened(now))

    def follow(self) -> None:
        """The leader's store is closed."""
        self.turned_at = self.opening_since = None
        self._lane.put(Follow())

    def give_up(self, reason: str) -> None:
        """Lead no longer, as clients cannot be served here."""
        self._tell(lambda member, now: member.give_up(reason, now))

    def stop(self) -> None:
        """Lead no longer, in order: the order to step down follows."""
        self._tell(lambda member, now: member.stop(now))

    def seal(self, layout: bytes, content: bytes) -> ShippedBatch | None:
        return self._tell(lambda member, now: member.seal(layout, content, now))

    def define(self, number: int, content: bytes) -> Definition | None:
        return self._tell(lambda member, now: member.define(number, content, now))

    # Answers of the disk: see `DiskAnswers`.

    def persisted(self, term: int) -> None:
        self._tell(lambda member, now: member.persisted(term, now))

    def synced(self, term: int, seq: int) -> None:
        self._tell(lambda member, now: member.synced(term, seq, now))

    def found_received(self, term: int, received: tuple[ReceivedFile, ...]) -> None:
        self._tell(lambda member, now: member.found_received(term, received, now))

    def discarded(self) -> None:
        self._tell(lambda member, _: member.discarded())

    def flushed(self, dial: Dial) -> None:
        secret = self._secret
        if secret is None:
            _log.error("etcd has no secret for this group: run `amqpstore cluster init`")
            return
        purpose = Purpose.TAGGED_STREAM if dial.takes_tags else Purpose.STREAM
        self._dialer.dial(dial.address, secret, self._connected, purpose)

    def released(self, term: int) -> None:
        # In between, a tick would judge a leader without a companion.
        with self._lock:
            companion = LeaderCompanion(self, self.log, self._directory, term)
            self._companion = companion
            self.opening_since = time.monotonic()
        self.orders.lead(companion)

    def following(self) -> None:
        def close(member: GroupMember, now: float) -> None:
            self._companion = None
            self._has_released = False
            self.opening_since = None
            self.orders.reset()
            # This comes last: from here on the member may stand again, and must not find the
            # orders of the leadership before.
            member.closed(now)

        self._tell(close)

    def not_persisted(self, error: DiskFullError) -> None:
        # A candidate that has won cannot lead in a term that its disk has not recorded: after a
        # restart it could append under an old one.
        if self.member.leader is not None:
            self.orders.fail(error)
        else:
            _log.error("this member cannot follow", extra={"reason": str(error)})
            self.stream_failed()

    def stream_failed(self) -> None:
        def hang_up(member: GroupMember, _now: float) -> None:
            # Only links that this member dialled end: on a leader, links from followers have
            # nothing to do with its own disk.
            for number in list(self._dialled):
                self._hang_up(number)
                member.disconnected(number)

        self._tell(hang_up)

    def failed(self, error: BaseException) -> None:
        self.orders.fail(error)

    # Answers of etcd: see `EtcdAnswers`.

    @property
    def secret(self) -> bytes | None:
        return self._secret

    def viewed(self, view: View) -> None:
        def take(member: GroupMember, now: float) -> None:
            if member.viewed(view, now):
                self._secret = view.secret or self._secret
                self.leader = KnownLeader.of(view.leader) if view.leader else None

        self._tell(take)

    def etcd_is_another(self, reason: str) -> None:
        self._tell(lambda member, _: member.etcd_is_another(reason))

    def granted(self, lease: int) -> None:
        self._tell(lambda member, now: member.granted(lease, now))

    def grant_failed(self) -> None:
        self._tell(lambda member, now: member.grant_failed(now))

    def attempted(self, request: str, outcome: Outcome, revision: int) -> None:
        self._attempts.discard(request)
        # An `UNKNOWN` outcome is passed on as such. Repeating a transaction whose answer was lost
        # is how jetcd lost updates.
        self._tell(lambda member, now: member.attempted(request, outcome, revision, now))

    def kept_alive(self, lease: int, asked_at: float, *, is_alive: bool) -> None:
        self._tell(lambda member, now: member.kept_alive(lease, asked_at, now, is_alive=is_alive))

    # Connections: see `LinkEvents` and `MemberConnections`.

    def accepted(self, sock: MemberSocket, session: PeerSession, peer: str) -> None:
        if session.purpose is Purpose.PROXY:
            self._let_in(sock)
            return
        if session.sent is None and isinstance(sock, socket.socket):
            _log.warning(
                "what this follower sends could be forged on its way: upgrade it",
                extra={"peer": peer},
            )
        with self._lock:
            # The role may have changed since the handshake began. A follower that is refused dials
            # whomever etcd names now.
            if self.member.leader is None or self._closed.is_set():
                sock.close()
                return
            self._link_count += 1
            reader = read_follower(session.read)
            link = Link(self._link_count, sock, reader, self, session.sent)
            self._links[link.number] = link
        link.start()

    def _let_in(self, sock: MemberSocket) -> None:
        """Have a client accepted that a follower passes on."""
        try:
            # With TLS between members, the client would have to be read here and passed on.
            if not isinstance(sock, socket.socket):
                raise ProxyHeaderError("clients are not passed on over TLS")  # noqa: TRY301
            client = ProxiedSocket.of(sock)
        except (OSError, EOFError, ProxyHeaderError) as error:
            _log.warning("a client is not passed on", extra={"reason": str(error)})
            sock.close()
            return
        self.proxied_listeners.enter(client)

    def connect_for_client(self, address: str) -> socket.socket:
        """Return a connection to a leader on which a client is passed on.

        Raises: HandshakeError, OSError.
        """
        secret = self._secret
        if secret is None:
            raise HandshakeError("etcd has told no secret yet")
        found, _ = self._dialer.connect(address, secret, Purpose.PROXY)
        if not isinstance(found, socket.socket):
            found.close()
            raise HandshakeError("clients are not passed on over TLS")
        return found

    def _connected(self, sock: MemberSocket, session: PeerSession) -> None:
        def connect(member: GroupMember, _now: float) -> Link | None:
            if self._closed.is_set():
                sock.close()
                return None
            self._link_count += 1
            reader = read_leader(MAX_CONTENT_BYTES, session.read)
            link = Link(self._link_count, sock, reader, self, session.sent)
            self._links[link.number] = link
            self._dialled.add(link.number)
            member.connected(link.number)
            return link

        if link := self._tell(connect):
            link.start()

    def received(self, link: int, frame: Frame) -> None:
        if isinstance(frame, Hello):
            with self._looking_up:
                # Each redial sends another Hello, and each look-up reads segments: those of
                # connections that are gone would pile up before the one that counts.
                if link in self._links:  # else it has connected again meanwhile
                    self.log.look_up(frame.tail)
        if isinstance(frame, StorePiece):
            # Nothing more is read from the leader until there is room for it.
            self._lane.wait_for_room()

        def receive(member: GroupMember, now: float) -> None:
            if link in self._links:  # else it was hung up
                member.received(link, frame, now)

        self._tell(receive)

    def progressed(self, link: int) -> None:
        def progress(member: GroupMember, now: float) -> None:
            if link in self._links:
                member.progressed(link, now)

        self._tell(progress)

    def refused(self, link: int) -> None:  # noqa: ARG002 - which one is in the log
        with self._lock:
            self.refused_frames += 1

    def disconnected(self, link: int, reason: str) -> None:
        def disconnect(member: GroupMember, _now: float) -> None:
            self._dialled.discard(link)
            if self._links.pop(link, None) is not None:
                _log.info("a member has disconnected", extra={"link": link, "reason": reason})
                member.disconnected(link)

        self._tell(disconnect)

    def _send(self, link: int, frame: Frame) -> None:
        found = self._links.get(link)
        if found is None:
            return
        # A batch goes to all followers as one object: it is encoded once.
        if self._encoded is None or self._encoded[0] is not frame:
            self._encoded = frame, encode(frame)
        found.send(self._encoded[1], is_urgent=frame.__class__ is Beat)

    def _hang_up(self, link: int) -> None:
        found = self._links.pop(link, None)
        self._dialled.discard(link)
        if found is not None:
            found.hang_up()

    def _send_much(self, asked: CatchUp | SendCopy) -> None:
        link, companion = self._links.get(asked.link), self._companion
        if link is None or companion is None:
            return
        if isinstance(asked, CatchUp):
            link.work(catch_up(asked, companion, self.log))
        else:
            job = send_copy(asked, self._directory, companion, self.log, self.copies)
            link.work(job)


def _make_request() -> str:
    return secrets.token_hex(16)
