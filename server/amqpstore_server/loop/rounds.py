"""The rounds of the loop: each reads from the sockets that are ready, then does once the work that
those reads left.

After the reads the queues hand out new messages, the open batch goes to the committer, and each
connection with output is written to once. Events outside a read (a timer is due, a login was
checked) wake the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import trio

from amqpstore_server.broker.broker import Broker
from amqpstore_server.loop.committer import Committer
from amqpstore_server.loop.loop_limits import LoopLimits
from amqpstore_server.loop.share import Share
from amqpstore_server.loop.sockets import Sockets
from amqpstore_server.loop.switching import SwitchInterval
from amqpstore_server.terms.serving_term import ServingTerm

_ASKING_AGAIN_S = 0.05
"""How often a leader that may send nothing asks whether it may."""


class Sender(Protocol):
    """A connection that has something to send."""

    def send_now(self, now: float) -> None:
        """Send what the socket accepts at once, and make sure that the rest follows."""


class Definer(Protocol):
    """A connection whose client has changed definitions."""

    def charge(self, seconds: float) -> None:
        """Count the time of what the last read has led to."""

    def withhold(self) -> Callable[[], None]:
        """Send nothing to the client until the result is called."""


class LoopRounds:
    """Reads, deliveries, the batch, and writes, in this order.

    Args: term, what answers wait for, and whether anything may be sent still.
    """

    def __init__(
        self,
        broker: Broker,
        sockets: Sockets,
        term: ServingTerm,
        limits: LoopLimits,
    ) -> None:
        self._limits = limits
        self._term = term
        self.when_defined = term.when_defined
        self._broker = broker
        self._pumping = broker.pumping
        self._sockets = sockets
        self._senders: dict[Sender, None] = {}
        self._definers: list[Definer] = []
        self._is_running = False
        self._held_back: list[trio.Event] = []
        self._collect_until = 0.0
        self._probe_at_s = 0.0
        self._switch_interval = SwitchInterval(limits)
        self._share = Share(limits.moves_pause_ratio, limits)
        """Decides whether moving and dropping messages has had its share of the time."""

    def wake(self) -> None:
        """Run a round soon: there is work."""
        if not self._is_running:  # it does the work anyway
            self._sockets.wake()
            self._sockets.let_others_run()

    def note_output(self, sender: Sender) -> None:
        """Note that a connection's outbox is no longer empty."""
        self._senders[sender] = None
        if not self._is_running:
            self.wake()

    def note_definer(self, definer: Definer) -> None:
        """Note that a client has changed definitions in this round."""
        self._definers.append(definer)

    async def wait_for_room(self) -> None:
        """Return once the disk has caught up with what is published. To be called while the
        committer has no room.
        """
        caught_up = trio.Event()
        self._held_back.append(caught_up)
        await caught_up.wait()

    async def run(self, committer: Committer) -> None:
        """Run a round whenever clients write, or `wake` asks for one. Never returns.

        What a round leaves is done in the next turn of trio's loop, however that came about: two
        rounds in one of its turns would hold up the other tasks for twice as long.
        """
        while True:
            await self._sockets.wait()
            self.run_once(committer, trio.current_time())

    def run_once(self, committer: Committer, now: float) -> None:
        """Read from the sockets that are readable, and do what follows from that."""
        self._is_running = True
        services = self._broker.services
        agenda = services.agenda
        agenda.read_s = began_s = time.perf_counter()
        agenda.spent = 0
        if began_s >= self._probe_at_s:
            self._probe_at_s = began_s + self._limits.probing_s
            services.statistics.probes.is_due = True
        try:
            agenda.joins_reads = True
            try:
                is_busy = self._sockets.read(now)
                if services.deferred.entries:
                    services.deferred.flush()
            finally:
                agenda.joins_reads = False
            if agenda.has_definitions:
                agenda.has_definitions = False
                self._commit_definitions()
            if is_busy or self._switch_interval.is_long:
                self._switch_interval.after_round(now, is_busy=is_busy)
            # After the reads, which consume the wake-up: a batch written since would otherwise
            # wait for the next one.
            committer.complete_written()
            if not is_busy:
                # What clients wait for goes to the disk before anything else is done.
                committer.commit(promised_only=True)
        finally:
            self._is_running = False
        # While clients send more than a round reads, queues collect what some rounds bring: to hand
        # out, take and ack a few messages costs nearly as much as many.
        collects = is_busy and now < self._collect_until
        if not collects:
            self._collect_until = now + self._limits.collecting_s
        self._end(committer, now, is_busy=is_busy, collects=collects)

    def _commit_definitions(self) -> None:
        """Commit what clients have defined in this round, together: before that none of them is
        answered, as what is in the outboxes is sent at the end of the round. Other clients are not
        served meanwhile either, so it counts as part of their reads.
        """
        began_s = time.perf_counter()
        self._broker.services.store.definitions.end_group()
        took_s = time.perf_counter() - began_s
        self._sockets.charge(took_s)
        definers, self._definers = self._definers, []
        for definer in definers:
            definer.charge(took_s / len(definers))
            # Answers wait until followers have it, too.
            self.when_defined(definer.withhold())

    def _end(self, committer: Committer, now: float, *, is_busy: bool, collects: bool) -> None:
        """Hand out messages, start a batch, and send."""
        services = self._broker.services
        agenda, deferred, disposal = services.agenda, services.deferred, services.store.disposal
        has_work = any(agenda.lines)
        if has_work:
            most = services.limits.max_handed_out
            for _ in range(self._limits.max_pumps):
                self._pump(collects=collects)
                deferred.copies -= agenda.handed_out
                is_all = agenda.handed_out < most or not agenda.touched
                if deferred.copies <= 0 or (is_all and not collects):
                    deferred.copies = 0
                if is_all or not deferred.copies:
                    break
        else:
            deferred.copies = 0
        if has_work or is_busy:
            committer.commit(promised_only=True)
        # Much is taken only where queues are pumped: what gets take, housekeeping looks at.
        may_free = has_work or disposal.runs or disposal.lists
        if may_free and services.store.upkeep.free_memory():
            self._sockets.return_in(0.0)
        if self._senders:
            self._send(now)
        if self._held_back and committer.has_room:
            self._release()

    def _pump(self, *, collects: bool) -> None:
        """Have the queues do their work."""
        wait_s = self._share.wait_s(time.perf_counter(), self._sockets.read_at)
        must_moves_wait = wait_s > 0
        self._is_running = True
        try:
            spent = self._pumping.pump(collects=collects, must_moves_wait=must_moves_wait)
        finally:
            self._is_running = False
        if spent:
            self._share.took(time.perf_counter(), spent / 1e6)
        if not self._pumping.has_more:
            return
        # Queues that got messages from another queue on the way come next.
        self._sockets.return_in(
            wait_s if must_moves_wait and self._pumping.only_moves_are_left else 0.0
        )

    def _release(self) -> None:
        """Resume the tasks that waited for room."""
        held_back, self._held_back = self._held_back, []
        for caught_up in held_back:
            caught_up.set()
        self._sockets.let_others_run()

    def _send(self, now: float) -> None:
        # A separate function, so that no local variable keeps a connection alive until the next
        # round.
        if self._term.has_followers and not self._term.may_send():
            # Clients may be served elsewhere, and this leadership is about to end. Or it goes on: a
            # process that was paused hears of its followers' promises a moment later, when nothing
            # else asks for a round.
            self._sockets.return_in(_ASKING_AGAIN_S)
            return
        senders, self._senders = self._senders, {}
        for sender in senders:
            sender.send_now(now)
