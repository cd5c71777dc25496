"""Bugs put into the broker core: each was a real mistake, or could well be one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import amqpstore
from amqpstore import Run
from amqpstore.format.departures import Departure
from amqpstore.format.runs import ReadyList
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Publisher
from amqpstore_server.broker.channels.local_transaction import LocalTransaction
from amqpstore_server.broker.definitions.owned_queues import OwnedQueues
from amqpstore_server.broker.messages.cycles import Landmark
from amqpstore_server.broker.messages.deaths import Death, Reason
from amqpstore_server.broker.monitoring.departures import QueueDepartures
from amqpstore_server.broker.queues.backlog import Backlog, Taken
from amqpstore_server.broker.queues.consumer import Consumer, Window
from amqpstore_server.broker.queues.dispatch import Dispatch
from amqpstore_server.broker.queues.priorities import Priorities
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.routing.routing import Route, Router
from amqpstore_server.broker.transactions.dead_letter import DeadLetters, Fate
from amqpstore_server.broker.transactions.transaction import Plan, Transaction
from tests.property.broker_machine import BrokerAgainstModel

Patch = pytest.MonkeyPatch


def a_dead_letter_stays_in_its_queue(patch: Patch) -> None:
    """Do not ack a dead letter in its old queue: after a crash it is in both queues."""
    patch.setattr(Transaction, "ack", lambda self, queue, taken: None)


def a_requeued_message_goes_to_the_end(patch: Patch) -> None:
    patch.setattr(ReadyList, "insert", lambda self, run: self.append(run))


def a_limit_drops_the_newest(patch: Patch) -> None:
    def drop_last(self: Backlog) -> None:
        settings = self._queue().settings
        limit = settings.max_length
        while not settings.rejects and limit is not None and self.priorities.ready_count > limit:
            level = self.priorities.lowest
            last = level.ready.last
            run = self._store.take(level, 1, first_sequence=last.end - 1)
            if not isinstance(run, Run):
                return
            self._left(run)
            self._way_out(self._queue(), [Taken(level, run)], Reason.MAXLEN)

    patch.setattr(Backlog, "drop_excess", drop_last)


def a_limit_drops_the_highest_priority(patch: Patch) -> None:
    def most(self: Priorities) -> amqpstore.Queue | None:
        return next((level for level in self if level.ready_count), None)

    patch.setattr(Priorities, "least", most)


def what_was_requeued_does_not_expire(patch: Patch) -> None:
    requeue = Queue.requeue

    def requeue_for_ever(self: Queue, taken: Taken, giver: object) -> None:
        taken.run.expires_ms = 0
        requeue(self, taken, giver)

    patch.setattr(Queue, "requeue", requeue_for_ever)


def time_starts_again_with_a_requeue(patch: Patch) -> None:
    requeue = Queue.requeue

    def requeue_anew(self: Queue, taken: Taken, giver: object) -> None:
        if taken.run.expires_ms:
            now_ms = self._services.clock.wall_ms()
            taken.run.expires_ms = now_ms + (self.settings.message_ttl or 10)
        requeue(self, taken, giver)

    patch.setattr(Queue, "requeue", requeue_anew)


def a_prefetch_of_one_is_two(patch: Patch) -> None:
    add = Window.add

    def add_late(self: Window, run: Run) -> None:
        add(self, run)
        if self.messages == self.unacked == 1:
            self.messages = 2

    patch.setattr(Window, "add", add_late)


def a_cancelled_consumer_frees_no_window(patch: Patch) -> None:
    """Keep counting for the channel what is acked after the cancel."""

    def forget(self: Channel, delivery: Any, *, requeue: bool | None) -> None:
        delivery.queue.unacked_count -= delivery.count
        if consumer := delivery.consumer:
            consumer.window.remove(delivery.run)
            if consumer.tag in self.consumers:
                self.window.remove(delivery.run)
            self.resume()

    patch.setattr(Channel, "forget", forget)


def a_rollback_loses_deliveries(patch: Patch) -> None:
    rollback = LocalTransaction.rollback

    def rollback_and_forget(self: LocalTransaction) -> list[Any]:
        rollback(self)
        return []

    patch.setattr(LocalTransaction, "rollback", rollback_and_forget)


def a_closed_channel_loses_what_it_had_settled(patch: Patch) -> None:
    patch.setattr(LocalTransaction, "rollback", lambda self: [])


def a_commit_forgets_what_was_rejected(patch: Patch) -> None:
    nothing = lambda self, transaction, queue, messages, reason, fate: None  # noqa: E731
    patch.setattr(DeadLetters, "add_messages", nothing)


def a_confirm_does_not_wait_for_the_disk(patch: Patch) -> None:
    settle = Publisher.confirm_published

    def settle_at_once(self: Publisher) -> None:
        store = self._services.store
        with pytest.MonkeyPatch.context() as while_settling:
            while_settling.setattr(store.log, "when_durable", lambda callback: callback())
            settle(self)

    patch.setattr(Publisher, "confirm_published", settle_at_once)


def a_commit_does_not_wait_for_the_disk(patch: Patch) -> None:
    commit = Transaction.commit

    def commit_at_once(
        self: Transaction,
        on_durable: Callable[[], None] | None = None,
        or_else: Callable[[], None] | None = None,
    ) -> None:
        commit(self, None, or_else)
        if on_durable:
            on_durable()

    patch.setattr(Transaction, "commit", commit_at_once)


def a_refused_publish_is_confirmed(patch: Patch) -> None:
    note = Publisher._note

    def note_all_well(self: Publisher, count: int, promise: Any) -> None:
        note(self, count, type(promise).NOW)

    patch.setattr(Publisher, "_note", note_all_well)


def a_circle_of_dead_letters_is_not_cut(patch: Patch) -> None:
    """Let dead letters go in a circle, except those that would come back at once."""

    is_cycle = Landmark.is_cycle

    def is_short_cycle(self: Landmark, queue: str, deaths: Sequence[Any]) -> bool:
        return is_cycle(self, queue, deaths[:1])

    patch.setattr(Landmark, "is_cycle", is_short_cycle)


def a_death_is_not_counted_twice(patch: Patch) -> None:
    patch.setattr(Death, "again", lambda self, _: self)


def the_last_come_is_active(patch: Patch) -> None:
    def pump(self: Dispatch, *, yields: bool) -> None:
        ready = self._priorities.ready_count
        self._serve(list(self.consumers)[-1:], ready, yields=yields)

    patch.setattr(Dispatch, "pump", pump)


def a_rejected_message_comes_back_to_who_rejected_it(patch: Patch) -> None:
    requeue = Queue.requeue
    patch.setattr(Queue, "requeue", lambda self, taken, giver: requeue(self, taken, None))


def a_purge_takes_what_is_unacked(patch: Patch) -> None:
    """Have a purge count unacked messages among those that it removed."""
    purge = Backlog.purge

    def purge_more(self: Backlog) -> int:
        return purge(self) + sum(one.window.unacked for one in self._queue().consumers.consumers)

    patch.setattr(Backlog, "purge", purge_more)


def a_purge_names_no_reason(patch: Patch) -> None:
    note = QueueDepartures.note

    def forget(
        self: QueueDepartures, reason: Departure, count: int, dead_lettered: int = 0
    ) -> None:
        if reason != Departure.PURGED:
            note(self, reason, count, dead_lettered)

    patch.setattr(QueueDepartures, "note", forget)


def a_deletion_forgets_what_is_unacked(patch: Patch) -> None:
    patch.setattr(Queue, "held_count", property(lambda self: self.ready_count))


def a_cycle_is_counted_as_what_it_died_of(patch: Patch) -> None:
    def note(self: Fate, queue: Queue, reason: Reason, count: int) -> None:
        queue.departures.note(reason.departure, count, count)

    patch.setattr(Fate, "note", note)


def exclusive_queues_outlive_their_connection(patch: Patch) -> None:
    patch.setattr(OwnedQueues, "end", lambda self, connection: None)


def a_freed_window_wakes_nobody(patch: Patch) -> None:
    patch.setattr(Channel, "touch_queues", lambda self: None)


def one_without_acks_waits_for_nobody(patch: Patch) -> None:
    """Let a consumer without acks get messages although its channel's window is full."""
    capacity: Any = Consumer.capacity
    patch.setattr(
        Consumer, "capacity", property(lambda self: 1 if self.no_ack else capacity.fget(self))
    )


def what_would_be_dropped_waits_for_another_turn(patch: Patch) -> None:
    pump = Dispatch.pump
    patch.setattr(Dispatch, "pump", lambda self, *, yields: pump(self, yields=True))


def a_moved_message_comes_when_it_wants(patch: Patch) -> None:
    """The timer of messages that came with a transaction is not set."""

    def arrived(self: Plan, *, drops_later: bool) -> None:
        for queue in self.queues:
            queue.touch()

    patch.setattr(Plan, "arrived", arrived)


def bytes_are_not_counted_down(patch: Patch) -> None:
    patch.setattr(Backlog, "_left", lambda self, run: None)


def a_fanout_of_dead_letters_goes_to_one(patch: Patch) -> None:
    route = Router.route

    def to_first(self: Router, envelope: Any) -> Route:
        return Route(route(self, envelope).queues[:1])

    patch.setattr(Router, "route", to_first)


def deliveries_are_not_logged(patch: Patch) -> None:
    """Do not log deliveries: after a crash messages are not marked as redelivered."""
    log_run = amqpstore.Store._log_run

    def log_others(self: Any, kind: Any, queue: Any, run: Run, detail: int = 0) -> None:
        log_run(self, kind, queue, run, min(detail, 1))

    patch.setattr(amqpstore.Store, "_log_run", log_others)


BUGS: Sequence[Callable[[Patch], None]] = [
    a_dead_letter_stays_in_its_queue,
    a_requeued_message_goes_to_the_end,
    a_limit_drops_the_newest,
    a_limit_drops_the_highest_priority,
    what_was_requeued_does_not_expire,
    time_starts_again_with_a_requeue,
    a_prefetch_of_one_is_two,
    a_cancelled_consumer_frees_no_window,
    a_rollback_loses_deliveries,
    a_closed_channel_loses_what_it_had_settled,
    a_commit_forgets_what_was_rejected,
    a_confirm_does_not_wait_for_the_disk,
    a_commit_does_not_wait_for_the_disk,
    a_refused_publish_is_confirmed,
    a_circle_of_dead_letters_is_not_cut,
    a_death_is_not_counted_twice,
    the_last_come_is_active,
    a_rejected_message_comes_back_to_who_rejected_it,
    a_purge_takes_what_is_unacked,
    a_purge_names_no_reason,
    a_deletion_forgets_what_is_unacked,
    a_cycle_is_counted_as_what_it_died_of,
    exclusive_queues_outlive_their_connection,
    a_freed_window_wakes_nobody,
    one_without_acks_waits_for_nobody,
    what_would_be_dropped_waits_for_another_turn,
    a_moved_message_comes_when_it_wants,
    bytes_are_not_counted_down,
    a_fanout_of_dead_letters_goes_to_one,
    deliveries_are_not_logged,
]

# Histories in which bugs show that others seldom bring about.


def begun(
    broker: BrokerAgainstModel,
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    mode: str = "",
    **changed: Any,
) -> None:
    """Two queues, q0 and q1, with one consumer each: of channel 1, and of channel 2."""
    drawn: dict[str, Any] = {
        "is_eager": True,
        "kind": "fanout",
        "messages": 0,
        "consumers": [(1, 0), (2, 1)],
        "is_private": False,
    }
    broker.begin(**{**drawn, "first": first or {}, "second": second or {}, "mode": mode, **changed})


def to(queue: str) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def rejected_again_and_again(broker: BrokerAgainstModel) -> None:
    begun(broker, to("q0"))
    broker.publish_plainly(3, 0, 1, True)
    for _ in range(2):
        broker.reject(0, False, 0, False)


def expired_to_two(broker: BrokerAgainstModel) -> None:
    begun(broker, {"x-message-ttl": 10, "x-dead-letter-exchange": "amq.fanout"}, consumers=[])
    for queue in ("q1", "q2"):
        broker.declare_queue(1, queue, True, False, False, {})
        broker.bind("amq.fanout", "queue", queue, "", {})
    broker.publish_plainly(3, 0, 1, True)
    broker.pass_time(2)


def expired_in_a_circle(broker: BrokerAgainstModel) -> None:
    begun(
        broker, {"x-message-ttl": 10, **to("q1")}, {"x-message-ttl": 10, **to("q0")}, consumers=[]
    )
    broker.publish_plainly(3, 0, 1, True)
    broker.pass_time(6)


def too_many_of_two_priorities(broker: BrokerAgainstModel) -> None:
    begun(broker, {"x-max-length": 1, "x-max-priority": 2}, consumers=[])
    broker.publish_one(3, 0, True, 2, None, False, False)
    broker.publish_one(3, 0, True, None, None, False, False)


def acked_and_rolled_back(broker: BrokerAgainstModel) -> None:
    begun(broker, mode="transactions")
    broker.publish_plainly(3, 0, 2, True)
    broker.ack(0, True, 0)
    broker.rollback(0)


def acked_and_closed(broker: BrokerAgainstModel) -> None:
    begun(broker, mode="transactions")
    broker.publish_plainly(3, 0, 2, True)
    broker.ack(0, True, 0)
    broker.close_channel(1)


def rejected_and_committed(broker: BrokerAgainstModel) -> None:
    begun(broker, to("q1"), mode="transactions")
    broker.publish_plainly(3, 0, 2, True)
    broker.reject(0, True, 0, False)
    broker.commit(0)


def published_and_committed(broker: BrokerAgainstModel) -> None:
    begun(broker, mode="transactions", is_eager=False, consumers=[])
    broker.publish_plainly(1, 0, 2, True)
    broker.commit(0)


def requeued_with_two_consumers(broker: BrokerAgainstModel) -> None:
    begun(broker, consumers=[(1, 0), (2, 0)], messages=1)
    broker.publish_plainly(3, 0, 2, True)
    broker.reject(0, False, 0, True)


def delivered_and_cut_off(broker: BrokerAgainstModel) -> None:
    begun(broker)
    broker.publish_plainly(3, 0, 2, True)
    for _ in range(3):
        broker.reject(0, True, 0, True)
    broker.cut_power(1)


def purged_while_unacked(broker: BrokerAgainstModel) -> None:
    begun(broker)
    broker.publish_plainly(3, 0, 2, True)
    broker.purge(1, 0)


def purged(broker: BrokerAgainstModel) -> None:
    begun(broker, consumers=[])
    broker.publish_plainly(3, 0, 2, True)
    broker.purge(1, 0)


def deleted_while_unacked(broker: BrokerAgainstModel) -> None:
    begun(broker)
    broker.publish_plainly(3, 0, 2, True)
    broker.delete_queue(1, 0, False, False)


def one_active_of_two(broker: BrokerAgainstModel) -> None:
    begun(broker, {"x-single-active-consumer": True}, consumers=[(1, 0), (2, 0)])
    broker.publish_plainly(3, 0, 2, True)


def acked_at_the_limit(broker: BrokerAgainstModel) -> None:
    begun(broker, consumers=[])
    broker.qos(1, 1, 0, True)
    broker.consume(1, 0, False, False, 0)
    broker.publish_plainly(3, 0, 2, True)
    broker.ack(0, False, 0)


def one_without_acks_at_a_shared_limit(broker: BrokerAgainstModel) -> None:
    begun(broker, messages=1, consumers=[(3, 0)])
    broker.consume(3, 0, True, False, 0)
    broker.publish_plainly(1, 0, 3, True)
    broker.ack(0, False, 0)


def no_length_at_a_shared_limit(broker: BrokerAgainstModel) -> None:
    begun(broker, {"x-max-length": 0}, messages=2, consumers=[(3, 0), (3, 1)])
    broker.publish_plainly(1, 0, 2, True)


def requeued_before_it_expires(broker: BrokerAgainstModel) -> None:
    begun(broker, {"x-message-ttl": 20}, consumers=[])
    broker.publish_plainly(3, 0, 1, True)
    broker.pass_time(1)
    broker.get_one(3, 0, False)
    broker.reject(0, False, 0, True)
    broker.pass_time(1)


def requeued_before_others(broker: BrokerAgainstModel) -> None:
    begun(broker, consumers=[])
    broker.publish_plainly(3, 0, 3, False)
    broker.get_one(3, 0, False)
    broker.reject(0, False, 0, True)


def private_and_closed(broker: BrokerAgainstModel) -> None:
    begun(broker, is_private=True)
    broker.close_connection("second")


def expired_together_as_they_came_back(broker: BrokerAgainstModel) -> None:
    """One of two dead letters is transient: it arrives with the other."""
    broker.begin(
        is_eager=False,
        first={"x-dead-letter-exchange": "e1"},
        second={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q0"},
        kind="direct",
        messages=0,
        mode="",
        is_private=False,
        consumers=[(1, 0), (1, 1)],
    )
    for persistent in (False, True):
        broker.publish_one(
            number=1,
            pick=0,
            persistent=persistent,
            priority=None,
            expiration="30",
            mandatory=True,
            immediate=True,
        )
        broker.sync()
    broker.pass_time(steps=3)
    broker.recover(pick=0, requeue=True)


FOUND: Sequence[Callable[[BrokerAgainstModel], None]] = (expired_together_as_they_came_back,)
"""Histories in which a run with new seeds found that broker and model did not agree."""


HISTORIES: Mapping[Callable[[Patch], None], Callable[[BrokerAgainstModel], None]] = {
    a_death_is_not_counted_twice: rejected_again_and_again,
    a_fanout_of_dead_letters_goes_to_one: expired_to_two,
    a_circle_of_dead_letters_is_not_cut: expired_in_a_circle,
    a_limit_drops_the_highest_priority: too_many_of_two_priorities,
    a_rollback_loses_deliveries: acked_and_rolled_back,
    a_closed_channel_loses_what_it_had_settled: acked_and_closed,
    a_commit_forgets_what_was_rejected: rejected_and_committed,
    a_commit_does_not_wait_for_the_disk: published_and_committed,
    a_rejected_message_comes_back_to_who_rejected_it: requeued_with_two_consumers,
    deliveries_are_not_logged: delivered_and_cut_off,
    exclusive_queues_outlive_their_connection: private_and_closed,
    a_purge_takes_what_is_unacked: purged_while_unacked,
    a_purge_names_no_reason: purged,
    a_deletion_forgets_what_is_unacked: deleted_while_unacked,
    a_cycle_is_counted_as_what_it_died_of: expired_in_a_circle,
    a_freed_window_wakes_nobody: acked_at_the_limit,
    one_without_acks_waits_for_nobody: one_without_acks_at_a_shared_limit,
    what_would_be_dropped_waits_for_another_turn: no_length_at_a_shared_limit,
    a_requeued_message_goes_to_the_end: requeued_before_others,
    the_last_come_is_active: one_active_of_two,
    what_was_requeued_does_not_expire: requeued_before_it_expires,
    time_starts_again_with_a_requeue: requeued_before_it_expires,
}
"""The other bugs show in the first histories that hypothesis comes up with."""
