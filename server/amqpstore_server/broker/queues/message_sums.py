"""Sums of a queue's messages and of the bytes of their bodies: where they are, and what survives.

All of it is kept where messages come and go, so that it is exact at any moment, also after a
restart, and for a backlog on disk. Here the priorities of a queue are added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amqpstore import Run
from amqpstore.queues.queue import is_logged

if TYPE_CHECKING:
    from amqpstore_server.broker.queues.queue import Queue


class Amount(NamedTuple):
    """Messages, and the bytes of their bodies; None while the sizes of some are unknown."""

    messages: int = 0
    body_bytes: int | None = 0

    def plus(self, other: Amount, sign: int = 1) -> Amount:
        """Return the sum of both, or with a sign of -1 their difference."""
        known = self.body_bytes is not None and other.body_bytes is not None
        body_bytes = (self.body_bytes or 0) + sign * (other.body_bytes or 0)
        return Amount(self.messages + sign * other.messages, body_bytes if known else None)


class UnackedSums:
    """The bytes of a queue's unacked messages, and those of them that are not in the log."""

    __slots__ = ("body_bytes", "unlogged_bytes", "unlogged_count")

    def __init__(self) -> None:
        self.body_bytes = self.unlogged_bytes = self.unlogged_count = 0

    def add(self, run: Run, *, sign: int = 1) -> None:
        """Count a run as unacked, or with a sign of -1 stop counting it."""
        self.body_bytes += sign * run.body_bytes
        if not is_logged(run):
            self.unlogged_count += sign * run.count
            self.unlogged_bytes += sign * run.body_bytes


def memory_bytes(queue: Queue) -> int:
    """Return the memory that a queue's messages take: those that are ready, and dead letters that
    wait, with all that belongs to them, of those that are unacked the bodies.
    """
    ready = sum([one.memory_bytes for one in queue.priorities])
    if queue.letters is not None:
        ready += memory_bytes(queue.letters)
    return ready + (MessageSums.of(queue).unacked_in_memory.body_bytes or 0)


class MessageSums(NamedTuple):
    """The sums of what is ready in a queue, what is unacked, and the dead letters that wait in it:
    all of it, what is `in_memory` with its bodies, and what is `persistent`, in the log.

    The sizes of bodies are unknown only where an index file of an old version lacks them, until
    those messages have left the queue.
    """

    ready: Amount = Amount()
    unacked: Amount = Amount()
    ready_in_memory: Amount = Amount()
    unacked_in_memory: Amount = Amount()
    ready_persistent: Amount = Amount()
    unacked_persistent: Amount = Amount()
    letters: Amount = Amount()
    letters_in_memory: Amount = Amount()
    letters_persistent: Amount = Amount()

    @property
    def total(self) -> Amount:
        """Everything."""
        return self.ready.plus(self.unacked).plus(self.letters)

    @property
    def in_memory(self) -> Amount:
        """The sums of the messages whose bodies are in memory."""
        return self.ready_in_memory.plus(self.unacked_in_memory).plus(self.letters_in_memory)

    @property
    def on_disk(self) -> Amount:
        """The sums of the messages that have no body in memory."""
        return self.total.plus(self.in_memory, -1)

    @property
    def persistent(self) -> Amount:
        """The sums of the messages that survive a restart."""
        return self.ready_persistent.plus(self.unacked_persistent).plus(self.letters_persistent)

    def plus(self, other: MessageSums) -> MessageSums:
        """Return the sums of two queues, added up."""
        return MessageSums(*(one.plus(more) for one, more in zip(self, other, strict=True)))

    @classmethod
    def of(cls, queue: Queue) -> MessageSums:
        """Return the sums of a queue."""
        count = count_bytes = on_disk = on_disk_bytes = unlogged = unlogged_bytes = 0
        unloaded = unloaded_bytes = 0
        is_sized = True
        for store_queue in queue.priorities:
            count += store_queue.ready_count
            count_bytes += store_queue.ready_bytes
            on_disk += store_queue.paged_count + store_queue.stored_count
            on_disk_bytes += store_queue.stored_bytes + (
                store_queue.paged_bytes if store_queue.paged else 0
            )
            unlogged += store_queue.unlogged_count
            unlogged_bytes += store_queue.unlogged_bytes
            unloaded += store_queue.unloaded.count
            unloaded_bytes += store_queue.unloaded.body_bytes
            is_sized = is_sized and store_queue.sized_bytes is not None
        unacked, sums = queue.unacked_count, queue.unacked_sums
        unacked_bytes = sums.body_bytes
        of_queue = cls(
            Amount(count, count_bytes if is_sized else None),
            Amount(unacked, unacked_bytes),
            Amount(count - on_disk, count_bytes - on_disk_bytes),
            # A transaction or a branch may hold what it acks, and what has left memory of that.
            Amount(max(unacked - unloaded, 0), max(unacked_bytes - unloaded_bytes, 0)),
            Amount(count - unlogged, count_bytes - unlogged_bytes if is_sized else None),
            Amount(unacked - sums.unlogged_count, unacked_bytes - sums.unlogged_bytes),
        )
        if queue.letters is None:
            return of_queue
        of_letters = cls.of(queue.letters)
        return of_queue._replace(
            letters=of_letters.ready,
            letters_in_memory=of_letters.ready_in_memory,
            letters_persistent=of_letters.ready_persistent,
        )


def volatile_count(queue: Queue) -> int:
    """Return how many messages, ready and unacked ones, do not survive the end of the process."""
    if not queue.priorities.lowest.durable:
        return queue.ready_count + queue.unacked_count
    ready = sum([one.unlogged_count for one in queue.priorities])
    return ready + queue.unacked_sums.unlogged_count
