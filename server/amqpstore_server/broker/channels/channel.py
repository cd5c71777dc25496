"""A channel: publishes, gets and unacked deliveries of one client, in the order of its tags.

Past 600 lines because all that a client can ask of a channel is about the same unacked deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from amqpstore import Message, Run
from amqpstore.provenance.client_trails import What
from amqpstore.queues.transient import FIRST_TRANSIENT
from amqpstore_server.broker.channels import unacked
from amqpstore_server.broker.channels.branches import Branches
from amqpstore_server.broker.channels.confirms import Flags, Publisher
from amqpstore_server.broker.channels.consumer_events import ConsumerEvents
from amqpstore_server.broker.channels.firehose import NOWHERE, Firehose, Origin
from amqpstore_server.broker.channels.local_transaction import LocalTransaction, UncommittedBytes
from amqpstore_server.broker.channels.mode import ChannelMode
from amqpstore_server.broker.channels.outlet import CLOSED, Outlet
from amqpstore_server.broker.channels.unacked import UnackedDeliveries
from amqpstore_server.broker.errors import NotAllowedError, PreconditionFailedError
from amqpstore_server.broker.exchanges.replay import REPLAY_EXCHANGE
from amqpstore_server.broker.messages.deaths import Reason
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.monitoring.counters import ChannelCounters, ChannelTotals
from amqpstore_server.broker.queues.backlog import Taken
from amqpstore_server.broker.queues.consumer import Consumer, ConsumerOptions, Window
from amqpstore_server.broker.queues.delivery import Delivery, shown
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.routing import Route, Router
from amqpstore_server.broker.transactions.dead_letter import DeadLetters
from amqpstore_server.broker.transactions.replay import Replays
from amqpstore_server.broker.work.ack_timeouts import TagNotes
from amqpstore_server.broker.work.services import BrokerServices

if TYPE_CHECKING:
    from amqpstore_server.broker.rights.permissions import Access

_SETTLED = {None: What.ACKED, True: What.REQUEUED, False: What.REJECTED}


class ChannelHost(Protocol):
    """A virtual host as its channels need it."""

    name: str
    services: BrokerServices
    router: Router
    dead_letters: DeadLetters
    replays: Replays
    branches: Branches
    channel_totals: ChannelTotals
    firehose: Firehose

    def reply_queue(self, connection: object) -> Queue:
        """Create a queue for direct replies, which is deleted with its consumer."""

    def remove_consumers(self, consumers: Iterable[Consumer]) -> None:
        """Remove a consumer from its queue."""


class Channel:
    """One channel of a connection. `connection` is any object: it owns exclusive queues.

    `origin` says who that is. `uncommitted` counts the memory of the transactions of all channels
    of the connection. `counters` are those of the channel, if it is listed.
    `window` limits what all its consumers together may have unacked; `consumer_window` is the limit
    that its client asked for each new consumer, which has `max_prefetch` at most. Nothing is
    delivered while it `is_paused`. `transaction` is the uncommitted work of a transacted channel,
    or of a channel in a branch (see `branches`); otherwise None.
    """

    def __init__(
        self,
        vhost: ChannelHost,
        connection: object,
        outlet: Outlet,
        uncommitted: UncommittedBytes | None = None,
        origin: Origin = NOWHERE,
        counters: ChannelCounters | None = None,
    ) -> None:
        self.vhost = vhost
        self.firehose = vhost.firehose
        self.origin = origin
        self.uncommitted = uncommitted or UncommittedBytes()
        self.connection = connection
        self.outlet = outlet
        self.consumers: dict[str, Consumer] = {}
        self.window = Window()
        self.consumer_window = (0, 0)
        self.max_prefetch = 0
        self.is_paused = False
        self.reply_to = ""
        """The address of its direct replies; empty without a consumer for them."""
        self.transaction: LocalTransaction | None = None
        self._mode = ChannelMode.PLAIN
        self._consumer_events = ConsumerEvents(vhost.services.events, vhost.name, origin)
        self.counters = counters or vhost.channel_totals.past
        self._agenda = vhost.services.agenda
        self._probes = vhost.services.statistics.probes
        self._trails = vhost.services.trails
        self.publisher = Publisher(
            *(vhost.services, vhost.dead_letters, vhost.replays, outlet, self.counters),
            origin=origin,
            vhost=vhost.name,
        )
        self._unacked = UnackedDeliveries()
        self.next_delivery_tag = 1
        self.tag_notes = TagNotes()

    # Publishing.

    def select_confirms(self) -> None:
        """Confirm each publish from now on. Raises: PreconditionFailedError."""
        self._mode = self._mode.changed_to(ChannelMode.CONFIRM)
        self.publisher.confirms = True

    def publish(self, envelope: ParsedEnvelope, messages: list[Message], flags: Flags) -> None:
        """Route messages whose envelopes, the first of which is `envelope`, are alike.

        Raises: NotFoundError, AccessRefusedError (an internal exchange), ResourceExhaustedError,
        PreconditionFailedError (an impossible replay).
        """
        if envelope.exchange == REPLAY_EXCHANGE:
            for _ in self.replay(messages, flags):
                pass
            return
        publisher = self.publisher if self.transaction is None else self.transaction
        is_traced = self.firehose.is_on and self.transaction is None
        for route, parsed, part in self.vhost.router.routes(envelope, messages):
            publisher.publish(route, parsed, part, flags)
            if is_traced:
                self.firehose.published(self.origin, route.queues, part)

    def flush_deferred(self) -> None:
        """Flush the deferred publishes, before something that may depend on them."""
        self.vhost.services.deferred.flush()

    def replay(self, messages: list[Message], flags: Flags) -> Iterator[None]:
        """Carry out the replays that messages request, in several steps: others may have their turn
        after each, but this channel only after the last.

        Raises: as `publish`.
        """
        if self.transaction is not None:
            raise PreconditionFailedError("a replay cannot be part of a transaction")
        for message in messages:
            yield from self.publisher.replay(message, flags)

    def confirm_published(self) -> None:
        """Confirm everything published since the last call: at once, or when it is durable."""
        self.publisher.confirm_published()

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back once everything promised before is durable and confirmed."""
        self.vhost.services.when_durable(callback, self.outlet.failed)

    # Consuming.

    def consume(
        self,
        queue: Queue,
        tag: str,
        options: ConsumerOptions,
        arguments: Mapping[str, object] | None = None,
    ) -> Consumer:
        """Start a consumer. Args: arguments, those that the client gave, to be told to others.

        Raises: NotAllowedError (the tag is taken), AccessRefusedError.
        """
        # basic.consume, rule `consumer-tag/01`: 530.
        if tag in self.consumers:
            raise NotAllowedError(f"attempt to reuse consumer tag '{tag}'")
        window = Window(*self.consumer_window, self.max_prefetch)
        consumer = Consumer(self, queue, tag, options, window)
        queue.add_consumer(consumer)
        self.consumers[tag] = consumer
        if not options.no_ack:
            self._watch_acks()
        self._consumer_events.created(consumer, self.consumer_window[0], arguments or {})
        return consumer

    def consume_replies(self, tag: str, options: ConsumerOptions) -> None:
        """Start the consumer of this channel's direct replies.

        Raises: PreconditionFailedError, NotAllowedError.
        """
        # As RabbitMQ has it: a direct reply is never stored, so there is nothing to ack.
        if not options.no_ack:
            raise PreconditionFailedError("reply consumer cannot acknowledge")
        if self.reply_to:
            raise PreconditionFailedError("reply consumer already set")
        queue = self.vhost.reply_queue(self.connection)
        self.consume(queue, tag, options)
        self.reply_to = queue.name

    def cancel(self, tag: str) -> None:
        """Cancel a consumer, if it exists; its unacked messages stay with the client."""
        if consumer := self.consumers.pop(tag, None):
            self._consumer_events.deleted(consumer)
            # basic.cancel does not touch what was delivered: the client may still settle it.
            self.vhost.remove_consumers([consumer])
            if consumer.queue.name == self.reply_to:
                self.reply_to = ""

    def cancelled(self, consumer: Consumer) -> None:
        """Tell the client that a queue has cancelled its consumer."""
        if self.consumers.pop(consumer.tag, None):
            self._consumer_events.deleted(consumer)
        self.outlet.consumer_cancelled(consumer.tag)

    def end_consumers(self, access: Access) -> None:
        """Cancel the consumers whose queues the user may no longer read; the client is told."""
        for tag, consumer in list(self.consumers.items()):
            # No permission is needed for the address of direct replies.
            # A revoked permission reaches consumers that run (RabbitMQ's CVE-2026-57218: it did
            # not).
            if consumer.queue.name != self.reply_to and not access.may("read", consumer.queue.name):
                self.cancel(tag)
                self.outlet.consumer_cancelled(tag)

    def deliver(self, consumer: Consumer, taken: Taken) -> None:
        """Send messages that were taken off a queue to one of the channel's consumers."""
        store_queue, run = taken
        first_tag = self.next_delivery_tag
        count = run.count
        self.next_delivery_tag += count
        queue = consumer.queue
        if store_queue.id in self._probes.waiting:
            self._probes.delivered(store_queue, run)
        if self._trails is not None:
            self._trails.note(What.DELIVERED, self.origin, consumer.tag, store_queue.id, run)
        if run.delivery_count:
            for counters in (self.counters, queue.counters):
                counters.redeliver += count
        if consumer.no_ack:
            self.counters.deliver_no_ack += count
            queue.counters.deliver_no_ack += count
        else:
            self.counters.deliver += count
            queue.counters.deliver += count
            queue.unacked_count += count
            sums = queue.unacked_sums
            sums.body_bytes += run.body_bytes
            if not run.first_id:
                sums.unlogged_count += count
                sums.unlogged_bytes += run.body_bytes
            self._unacked.append(Delivery(first_tag, queue, consumer, store_queue, run))
            consumer.window.add(run)
            self.window.add(run)
            if consumer.shares_limit:
                # The consumer served last goes to the end of the line: see `resume`.
                self.consumers[consumer.tag] = self.consumers.pop(consumer.tag)
        run = shown(queue, run)
        self.outlet.deliver(consumer, first_tag, run)
        if self.firehose.is_on:
            self.firehose.delivered(self.origin, queue.name, run)

    def get(self, queue: Queue, *, no_ack: bool, in_chunks: bool = False) -> tuple[int, Run] | None:
        """Take one message, with its delivery tag; None if no message is ready.

        Args: in_chunks, as of `Backlog.take`.
        """
        queue.fetched_from()
        # basic.qos has no effect on basic.get: no window is asked.
        return self.fetch(queue, no_ack=no_ack, in_chunks=in_chunks)

    def fetch(
        self, queue: Queue, *, no_ack: bool, in_chunks: bool = False
    ) -> tuple[int, Run] | None:
        """Take one message as `get` does, for a get that waited: the queue has already expired what
        is due.
        """
        taken = queue.backlog.take(1, acked=no_ack, in_chunks=in_chunks)
        if taken is None:
            return None
        if queue.consumers:
            queue.touch()  # the next message may be small enough for one of them
        tag = self.next_delivery_tag
        self.next_delivery_tag += 1
        for counters in (self.counters, queue.counters):
            counters.fetched(no_ack=no_ack, redelivered=taken.run.delivery_count > 0)
        if self._trails is not None:
            self._trails.note(What.DELIVERED, self.origin, "", taken.store_queue.id, taken.run)
        if not no_ack:
            queue.unacked_count += 1
            queue.unacked_sums.add(taken.run)
            self._unacked.append(Delivery(tag, queue, None, *taken))
            self._watch_acks()
        run = shown(queue, taken.run)
        if self.firehose.is_on:
            self.firehose.delivered(self.origin, queue.name, run)
        return tag, run

    def found_nothing(self, queue: Queue) -> None:
        """Count a get that was answered without a message."""
        for counters in (self.counters, queue.counters):
            counters.get_empty += 1

    def ack(self, first: int, last: int) -> None:
        """Ack the tags from `first` to `last`. Raises: PreconditionFailedError, at the first
        unknown tag.
        """
        self._settle_each(first, last, requeue=None)

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Requeue or drop one message. Raises: PreconditionFailedError."""
        self._settle_each(tag, tag, requeue=requeue)

    def recover(self, *, requeue: bool) -> None:
        """Requeue everything unacked, or send it to its consumers again."""
        for _ in self.recovering(requeue=requeue) or ():
            pass

    def recovering(self, *, requeue: bool) -> Iterator[None] | None:
        """Do as `recover`, in steps: see `settling_until`."""
        # basic.recover: everything unacked of the channel goes back, flagged as redelivered, to
        # any consumer.
        if requeue:
            return self._begin_settling(self._unacked.take_all(), requeue=True)
        self._unacked.send_again()
        self._redeliver()
        return None

    def _redeliver(self) -> None:
        """Send again what recover asked for, as far as the outbox has room."""
        left_out = False
        redeliveries = self._unacked.redeliveries
        while redeliveries and self.outlet.is_writable:
            delivery = redeliveries.popleft()
            consumer = delivery.consumer
            # A get, or a consumer that was cancelled: it cannot be sent there again.
            if consumer is None or self.consumers.get(consumer.tag) is not consumer:
                self.settled(delivery, requeue=True)
                continue
            consumer.window.remove(delivery.run)
            self.window.remove(delivery.run)
            # It counts as unacked again once it is delivered, or does not any more.
            delivery.queue.unacked_count -= delivery.count
            delivery.queue.unacked_sums.add(delivery.run, sign=-1)
            taken, rest = delivery.queue.bring_back(delivery.taken)
            if rest is not None:
                # The rest is unacked, as it was.
                delivery.run = rest.run
                delivery.queue.unacked_count += delivery.count
                delivery.queue.unacked_sums.add(rest.run)
                consumer.window.add(rest.run)
                self.window.add(rest.run)
                redeliveries.appendleft(delivery)
            if taken is not None and delivery.queue.redeliver(taken):
                self.deliver(consumer, taken)
            else:
                left_out = True
                if consumer.is_apart:
                    delivery.queue.consumers.readmit(consumer)
        if left_out:
            self.touch_queues()

    def pause(self, *, paused: bool) -> None:
        """Stop deliveries to the client, or continue them."""
        self.is_paused = paused
        if not paused:
            self.resume_soon()

    def close(self) -> None:
        """Close the channel: end its consumers, requeue unacked messages and roll back the
        transaction.
        """
        # The timeout goes first: it must not close a channel that is closing.
        self.vhost.services.ack_timeouts.channels.pop(self, None)
        consumers = [*self.consumers.values()]
        self.consumers.clear()
        self._consumer_events.deleted(*consumers)
        # Before anything is requeued, which would otherwise be delivered to them again.
        self.vhost.remove_consumers(consumers)
        if self._mode is ChannelMode.DTX:
            self.vhost.branches.channel_closed(self)
        deliveries = self._unacked.take_all()
        if self.transaction is not None:
            # An open transaction is rolled back: its publishes never were, and its acks are
            # undone.
            deliveries += self.transaction.rollback()
            self.transaction = None
        self.requeue_all(deliveries)

    def requeue_all(self, deliveries: list[Delivery]) -> None:
        """Requeue deliveries that are no longer unacked: of many, most in later rounds."""
        if steps := self._begin_settling(deliveries, requeue=True):
            self._agenda.background.append(steps)

    @property
    def unacked_count(self) -> int:
        """Deliveries that are not acked."""
        return self._unacked.total_count

    @property
    def is_confirming(self) -> bool:
        """Whether its publishes are confirmed."""
        return self._mode is ChannelMode.CONFIRM

    @property
    def is_transactional(self) -> bool:
        """Whether its publishes and acks wait for a commit."""
        return self._mode in (ChannelMode.TX, ChannelMode.DTX)

    @property
    def unconfirmed_count(self) -> int:
        """Publishes that are not confirmed yet."""
        return self.counters.confirmable - self.counters.confirm

    @property
    def uncommitted_counts(self) -> tuple[int, int]:
        """The numbers of publishes and of acks that wait for a commit."""
        return (0, 0) if self.transaction is None else self.transaction.counts

    @property
    def has_unacked(self) -> bool:
        """Whether it has deliveries that are not acked, or whose acks wait for a commit."""
        settled = self.transaction is not None and self.transaction.has_settled
        return settled or self._unacked.total_count > 0

    def _watch_acks(self) -> None:
        self.vhost.services.ack_timeouts.channels[self] = None

    @property
    def oldest_unacked(self) -> tuple[int, int] | None:
        """The tag of its oldest unacked message, and its limit in ms, 0 if it has none; or None."""
        return self._unacked.oldest(self.vhost.services.consumer_timeout_ms)

    def unacked_in(self, queue: object) -> Iterator[Delivery]:
        """Yield what its client has of a queue, also what is acked in a transaction only."""
        settled = self.transaction.settled if self.transaction is not None else ()
        return self._unacked.of_queue(queue, settled)

    def giving_up_deleted(self, at_once: int) -> Iterator[int]:
        """Free what its client has of deleted queues: see `UnackedDeliveries`."""

        def settled() -> Sequence[Delivery]:
            return () if self.transaction is None else self.transaction.waiting

        release = self.vhost.services.store.ack
        return self._unacked.giving_up_deleted(release, at_once, settled)

    def ack_timed_out(self, timeout_ms: int) -> None:
        """Have the channel closed: an ack is overdue. Unacked messages are requeued."""
        self.outlet.ack_timed_out(timeout_ms)

    def forget_outlet(self) -> None:
        """Drop the outlet: the client is not told of what becomes durable later."""
        # Confirms of what is still on its way to the disk arrive at a channel number that may be
        # another channel's by then.
        self.outlet = self.publisher.outlet = CLOSED

    def end_counting(self) -> None:
        """Count what becomes of its messages later with those of other channels that were closed:
        it is not listed any more.
        """
        self.counters = self.publisher.counters = self.vhost.channel_totals.end(self.counters)

    def resume(self) -> None:
        """Continue deliveries: have the queues of its consumers pump."""
        self._redeliver()
        self.touch_queues()

    def resume_soon(self) -> None:
        """Do as `resume`, once a round however often it is asked for: consumers may be many."""
        self._redeliver()
        self._agenda.freed[self] = None

    def touch_queues(self) -> None:
        """Have its consumers' queues pump. With a shared limit, the one served last comes last."""
        is_limited = self.window.messages or self.window.size
        for consumer in self.consumers.values():
            if consumer.is_apart:
                consumer.queue.consumers.readmit(consumer)
            if is_limited:
                self._agenda.touched.pop(consumer.queue, None)
            consumer.queue.touch()

    # Transactions.

    def select_transactions(self) -> None:
        """Have publishes and acks wait for a commit from now on. Raises:
        PreconditionFailedError.
        """
        self._mode = self._mode.changed_to(ChannelMode.TX)
        # tx.select may be sent twice, and the second one does nothing, as in RabbitMQ.
        if self.transaction is None:
            self.transaction = LocalTransaction(self, self.vhost.services, self.vhost.dead_letters)

    def select_branches(self) -> None:
        """Allow work in branches from now on. Raises: PreconditionFailedError."""
        self._mode = self._mode.changed_to(ChannelMode.DTX)

    def check_branches(self) -> None:
        """Raises: PreconditionFailedError, if the channel may not work in branches."""
        if self._mode is not ChannelMode.DTX:
            raise PreconditionFailedError("channel is not in dtx mode: dtx.select comes first")

    def commit(self) -> None:
        """Commit the transaction, as a whole or not at all; the client is told once it is durable.

        Raises: PreconditionFailedError, ResourceExhaustedError.
        """
        for _ in self.committing():
            pass

    def committing(self) -> Iterator[None]:
        """Do as `commit`, in steps: see `settling_until`."""
        return self._transaction.committing()

    def rollback(self) -> None:
        """Drop the transaction's publishes; messages it acked or rejected are unacked again.

        Raises: PreconditionFailedError.
        """
        for _ in self.rolling_back():
            pass

    def rolling_back(self) -> Iterator[None]:
        """Do as `rollback`, in steps: see `settling_until`."""
        yield from self._unacked.putting_back(self._transaction.rollback())

    @property
    def _transaction(self) -> LocalTransaction:
        if self.transaction is None or self._mode is not ChannelMode.TX:
            # tx.commit, rule `transacted`: 406.
            raise PreconditionFailedError("channel is not transactional")
        return self.transaction

    # Settling (AMQP's word for ack and reject): `requeue` says how; None is an ack.

    def _settle_each(self, first: int, last: int, *, requeue: bool | None) -> None:
        """Settle tags that the client named one by one, up to the first invalid one."""
        # Tags of this channel only: an ack on another one does not find them (delivery-tag, rule
        # `channel-local`).
        deliveries = self._unacked.remove(first, last - first + 1)
        expected = first
        for index, delivery in enumerate(deliveries):
            if delivery.first_tag != expected:
                for unreached in deliveries[index:]:
                    # What lies behind the invalid tag stays unacked: the channel closes, and it is
                    # requeued.
                    self._unacked.insert(unreached)
                break
            expected = delivery.end
            self._settle(delivery, requeue=requeue)
        if expected <= last:
            # At once, in a transaction as well: rule `multiple/exists` of basic.ack.
            raise PreconditionFailedError(f"unknown delivery tag {expected}")

    def settling_until(self, tag: int, *, requeue: bool | None) -> Iterator[None] | None:
        """Settle everything unacked up to `tag`, in steps: others may have their turn after each,
        but this channel only after the last. Returns None if all of it is done.

        If not all are taken, because the channel has gone, the rest follows in later rounds.
        Args: requeue, None is an ack. Raises: PreconditionFailedError, at once.
        """
        deliveries = self._unacked.take_until(tag, self.next_delivery_tag)
        most = unacked.AT_ONCE
        # In a transaction settling is only noting; the commit does the work, in steps.
        if self.transaction is None and deliveries[most : most + 1]:  # `len` would be a call
            return self._begin_settling(deliveries, requeue=requeue)
        for delivery in deliveries:
            self._settle(delivery, requeue=requeue)
        return None

    def _begin_settling(
        self, deliveries: list[Delivery], *, requeue: bool | None
    ) -> Iterator[None] | None:
        """Settle some of the deliveries, which were removed from the unacked ones, outside of a
        transaction. Returns the steps that settle the others; None if there are none.
        """
        settle = partial(self.settled, requeue=requeue)
        return unacked.settle_some(self._agenda, deliveries, settle, in_queue_order=bool(requeue))

    def _settle(self, delivery: Delivery, *, requeue: bool | None) -> None:
        if self.transaction is not None:
            self.transaction.settle(delivery, requeue=requeue)
        else:
            self.settled(delivery, requeue=requeue)

    def settled(self, delivery: Delivery, *, requeue: bool | None) -> None:
        """Finish a delivery that has been removed from the unacked ones."""
        # The delivery is forgotten before the queue has the message again: that could be delivered
        # at once, and must not count twice.
        self.forget(delivery, requeue=requeue)
        if requeue is None:
            delivery.queue.ack(delivery.taken)
        elif requeue:
            consumer = delivery.consumer
            delivery.queue.requeue(delivery.taken, consumer.identity if consumer else None)
        else:
            delivery.queue.reject(delivery.taken)

    def forget(self, delivery: Delivery, *, requeue: bool | None) -> None:
        """Stop counting a delivery as unacked: it was acked, requeued or dropped."""
        queue, count = delivery.queue, delivery.run.count
        if self._trails is not None:
            tag, queue_id = delivery.consumer_tag or "", delivery.store_queue.id
            self._trails.note(_SETTLED[requeue], self.origin, tag, queue_id, delivery.run)
        queue.unacked_count -= count
        # As `UnackedSums.add`, without the call.
        sums, body_bytes = queue.unacked_sums, delivery.run.body_bytes
        sums.body_bytes -= body_bytes
        if not 0 < delivery.run.first_id < FIRST_TRANSIENT:
            sums.unlogged_count -= count
            sums.unlogged_bytes -= body_bytes
        if requeue is None:
            self.counters.ack += count
            queue.counters.ack += count
            if queue.is_deleted:
                self.counters.late_ack += count
                queue.counters.late_ack += count
        else:
            for counters in (self.counters, queue.counters):
                counters.rejected(count, requeue=requeue)
            if not requeue:
                dead_letters = self.vhost.services.statistics.dead_letters
                dead_letters[Reason.REJECTED, queue.letter_strategy] += count
        if consumer := delivery.consumer:
            own, shared = consumer.window, self.window
            was_full = own.size or (own.messages and own.unacked >= own.messages)
            own.unacked -= count
            own.unacked_bytes -= body_bytes
            shared.unacked -= count
            shared.unacked_bytes -= body_bytes
            if consumer.is_apart:
                queue.consumers.readmit(consumer)
            if shared.messages or shared.size:
                self._agenda.freed[self] = None
            elif was_full or self.is_paused or not self.outlet.is_writable:
                # Otherwise it was given everything there is for it.
                consumer.queue.touch()

    def count_published(
        self, route: Route, exchange: str, count: int, flags: Flags, undelivered: int
    ) -> None:
        """Count messages of one route that were published in its transaction."""
        self.publisher.count(route, exchange, count, flags, undelivered)
