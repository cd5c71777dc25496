"""Every way in which a message leaves: each has a name here, a number that never changes, and a
counter in whatever serves the store.

The numbers are to be written to disk, so that a log can say why a message is not there any more:
a number is never given a second meaning, and new reasons get new numbers.
"""

from __future__ import annotations

import enum


class Departure(enum.IntEnum):
    """The reason why a message has left its queue for good, or has never entered one.

    A message that leaves has exactly one. One that dies (it is rejected, expires, is dropped or
    delivered too often) and whose dead letter arrives nowhere has left by CYCLE or NO_ROUTE, not by
    what it died of: that is what an operator has to know.
    """

    ACKED = 1
    """A consumer acked it, or got it without acks."""
    REJECTED = 2
    """A consumer rejected it, without having it requeued."""
    DELIVERY_LIMIT = 3
    """The message was requeued, and had been delivered as often as its queue allows."""
    EXPIRED = 4
    """The message's time, or that of its queue, was over."""
    MAXLEN = 5
    """The message was at the head of a queue that was too long, or had too many bytes."""
    PUBLISH_REJECTED = 6
    """The queue was full and refuses then, or has failed: it never entered the queue."""
    CYCLE = 7
    """The message was a dead letter whose only destinations were queues that it had been in before.
    """
    NO_ROUTE = 8
    """The message was a dead letter, or a delayed message at its time, and no queue was bound for
    it, or there was no such exchange.
    """
    PURGED = 9
    """The message's queue was purged."""
    QUEUE_DELETED = 10
    """The message's queue was deleted, or the virtual host or the exchange that the queue belonged
    to.
    """
    QUEUE_EXPIRED = 11
    """The message's queue was deleted because it had not been used for some time."""
    OWNER_GONE = 12
    """The message's queue was deleted with the connection that had it for itself, or with its last
    consumer.
    """
    MOVED = 13
    """An operator moved it to another queue."""
    DELETED = 14
    """An operator deleted it."""
    REPLAYED = 15
    """An operator sent it back to where it had died."""
    RELEASED = 16
    """The message was delayed, its time has come, and it is in the queues that it was for."""
    LOST_AT_RESTART = 17
    """The message was transient, or its queue was, and the broker stopped."""
    UNROUTABLE = 18
    """No queue was bound for it when it was published: it never entered one."""
    RETURNED = 19
    """No queue was bound, and its publisher got it back, as it had asked for."""

    @property
    def label(self) -> str:
        """The reason's name in metrics, answers and the log."""
        return self.name.lower()

    @property
    def is_routine(self) -> bool:
        """Whether the message has reached its destination, so that there is nothing to report."""
        return self in (Departure.ACKED, Departure.RELEASED, Departure.RETURNED)
