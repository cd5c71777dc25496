"""Bugs put into the broker core: each was, or could well be, somebody's mistake."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import amqpstore
import server.broker.dead_letter
from amqpstore import Message, Run
from amqpstore.runs import ReadyList
from server.broker.channel import Channel
from server.broker.consumer import Window
from server.broker.dead_letter import DeadLetters
from server.broker.dispatch import Dispatch
from server.broker.levels import Levels
from server.broker.local_transaction import LocalTransaction
from server.broker.publishing import Publisher
from server.broker.queue import Queue, Reason, Taken
from server.broker.transaction import Plan, Transaction
from server.broker.vhost import VirtualHost

Patch = pytest.MonkeyPatch


def a_dead_letter_stays_in_its_queue(patch: Patch) -> None:
    """It is not acked: after a crash it is in both queues."""
    patch.setattr(Transaction, "ack", lambda self, taken: None)


def a_requeued_message_goes_to_the_end(patch: Patch) -> None:
    insert = ReadyList.insert

    def insert_last(self: ReadyList, run: Run) -> None:
        if run.delivery_count and len(self):
            insert(self, Run(self.last.end, run.count, messages=run.messages, delivery_count=1))
        else:
            insert(self, run)

    patch.setattr(ReadyList, "insert", insert_last)


def a_limit_drops_the_newest(patch: Patch) -> None:
    def drop_last(self: Queue) -> None:
        limit = self.settings.max_length
        while not self.settings.rejects and limit is not None and self.ready_count > limit:
            level = self.levels.lowest
            last = level.ready.last
            run = self._store.take(level, 1, first_sequence=last.end - 1)
            if not isinstance(run, Run):
                return
            self._left(run)
            self._bury(self, [Taken(level, run)], Reason.MAXLEN)

    patch.setattr(Queue, "_drop_excess", drop_last)


def a_limit_drops_the_highest_priority(patch: Patch) -> None:
    def most(self: Levels) -> amqpstore.Queue | None:
        return next((level for level in self if level.ready_count), None)

    patch.setattr(Levels, "least", most)


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
            taken.run.expires_ms = self._core.clock() + (self.settings.message_ttl or 10)
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
    """What is acked after the cancel still counts for the channel."""

    def forget(self: Channel, delivery: Any) -> None:
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
    patch.setattr(Channel, "rollback", lambda self: None)


def a_commit_forgets_what_was_rejected(patch: Patch) -> None:
    patch.setattr(DeadLetters, "add", lambda self, transaction, queue, taken, reason: None)


def a_confirm_does_not_wait_for_the_disk(patch: Patch) -> None:
    settle = Publisher.settle

    def settle_at_once(self: Publisher) -> None:
        store = self._vhost.core.store
        with pytest.MonkeyPatch.context() as while_settling:
            while_settling.setattr(store, "when_durable", lambda callback: callback())
            settle(self)

    patch.setattr(Publisher, "settle", settle_at_once)


def a_commit_does_not_wait_for_the_disk(patch: Patch) -> None:
    commit = Transaction.commit

    def commit_at_once(self: Transaction, on_durable: Callable[[], None] | None = None) -> None:
        commit(self)
        if on_durable:
            on_durable()

    patch.setattr(Transaction, "commit", commit_at_once)


def a_refused_publish_is_confirmed(patch: Patch) -> None:
    note = Publisher._note

    def note_all_well(self: Publisher, count: int, promise: Any) -> None:
        note(self, count, type(promise).NOW)

    patch.setattr(Publisher, "_note", note_all_well)


def a_circle_of_dead_letters_is_not_cut(patch: Patch) -> None:
    """But for those that would come back at once."""
    is_cycle = server.broker.dead_letter._is_cycle

    def is_short_cycle(queue: str, deaths: Sequence[Any]) -> bool:
        return is_cycle(queue, deaths[:1])

    patch.setattr(server.broker.dead_letter, "_is_cycle", is_short_cycle)


def a_death_is_not_counted_twice(patch: Patch) -> None:
    deaths_of = server.broker.dead_letter._deaths

    def count_ones(*about: Any) -> list[dict[str, Any]]:
        deaths = deaths_of(*about)
        deaths[0]["count"] = type(deaths[0]["count"])(1)
        return deaths

    patch.setattr(server.broker.dead_letter, "_deaths", count_ones)


def the_last_come_is_active(patch: Patch) -> None:
    def pump(self: Dispatch) -> None:
        self._serve(self.consumers[-1:])

    patch.setattr(Dispatch, "pump", pump)


def a_rejected_message_comes_back_to_who_rejected_it(patch: Patch) -> None:
    requeue = Queue.requeue
    patch.setattr(Queue, "requeue", lambda self, taken, giver: requeue(self, taken, None))


def a_purge_takes_what_is_unacked(patch: Patch) -> None:
    """It says that it removed what was not there."""
    purge = Queue.purge

    def purge_more(self: Queue) -> int:
        return purge(self) + sum(one.window.unacked for one in self.consumers.consumers)

    patch.setattr(Queue, "purge", purge_more)


def exclusive_queues_outlive_their_connection(patch: Patch) -> None:
    patch.setattr(VirtualHost, "delete_queues_of", lambda self, connection: None)


def a_freed_window_wakes_nobody(patch: Patch) -> None:
    patch.setattr(Channel, "resume", lambda self: None)


def a_moved_message_comes_when_it_wants(patch: Patch) -> None:
    """The timer of messages that came with a transaction is not set."""

    def arrived(self: Plan) -> None:
        for queue in self.queues:
            queue.touch()

    patch.setattr(Plan, "arrived", arrived)


def bytes_are_not_counted_down(patch: Patch) -> None:
    patch.setattr(Queue, "_left", lambda self, run: None)


def a_fanout_of_dead_letters_goes_to_one(patch: Patch) -> None:
    placed = server.broker.dead_letter._placed

    def place_first(route: Any, label: Any, messages: list[Message]) -> Plan:
        del route.queues[1:]
        return placed(route, label, messages)

    patch.setattr(server.broker.dead_letter, "_placed", place_first)


def deliveries_are_not_logged(patch: Patch) -> None:
    """After a crash a message does not say that it was delivered."""
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
    exclusive_queues_outlive_their_connection,
    a_freed_window_wakes_nobody,
    a_moved_message_comes_when_it_wants,
    bytes_are_not_counted_down,
    a_fanout_of_dead_letters_goes_to_one,
    deliveries_are_not_logged,
]

QUEUES: Mapping[Callable[[Patch], None], tuple[dict[str, Any], dict[str, Any]]] = {
    a_limit_drops_the_highest_priority: ({"x-max-length": 1, "x-max-priority": 2}, {}),
    a_circle_of_dead_letters_is_not_cut: (
        {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q1"},
        {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q0"},
    ),
    a_death_is_not_counted_twice: (
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q0"},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q1"},
    ),
    a_rollback_loses_deliveries: ({}, {}),
    a_closed_channel_loses_what_it_had_settled: ({}, {}),
    a_rejected_message_comes_back_to_who_rejected_it: ({}, {}),
}
"""Arguments of two queues with which a bug is seen soon; the others show with any."""
