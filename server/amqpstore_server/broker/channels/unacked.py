"""The unacked deliveries of a channel, and how very many of them are settled: in steps.

A client that acks in another order than it gets its messages has a delivery for each gap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

import amqpstore
from amqpstore.format.runs import Run, RunList
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.queues.delivery import Delivery
from amqpstore_server.broker.work import steps
from amqpstore_server.broker.work.agenda import Agenda

AT_ONCE = 256
"""Deliveries that are settled before others have their turn."""

_NONE: deque[Delivery] = deque()
"""Shared by nearly all channels, and never added to: an empty deque takes 760 bytes."""

_FIRST_SEQUENCE = attrgetter("run.first_sequence")
_FIRST_TAG = attrgetter("first_tag")


class UnackedDeliveries(RunList[Delivery]):
    """The deliveries that a client may still settle, by delivery tag.

    Besides them, `redeliveries` are to be sent again after basic.recover; they count as unacked.
    `rolled_back` are unacked again, and a rollback has not put them back yet.
    """

    __slots__ = ("redeliveries", "rolled_back")

    def __init__(self) -> None:
        super().__init__()
        self.redeliveries = _NONE
        self.rolled_back = _NONE

    @property
    def total_count(self) -> int:
        """The number of unacked messages."""
        return self.count + sum([one.count for one in self.redeliveries])

    def oldest(self, timeout_ms: int) -> tuple[int, int] | None:
        """Return the tag of the oldest, and how many ms it may stay unacked; 0 if for ever. None if
        there is none.

        Args: timeout_ms, where neither its consumer nor its queue says another.
        """
        if not self.count:
            return None
        delivery = self.first
        its_ms = delivery.queue.ack_timeout_ms(delivery.consumer, timeout_ms)
        return delivery.first_tag, its_ms

    def of_queue(self, queue: object, settled: Iterable[Delivery]) -> Iterator[Delivery]:
        """Yield what the client has of a queue. Args: settled, in its transaction."""
        for delivery in chain(self, self.redeliveries, self.rolled_back, settled):
            if delivery.queue is queue:
                yield delivery

    def giving_up_deleted(
        self,
        release: Callable[[amqpstore.Queue, Run], object],
        at_once: int,
        settled: Callable[[], Sequence[Delivery]],
    ) -> Iterator[int]:
        """Free the messages of deleted queues, with the queues and their consumers: only the tags
        stay, which the client may still settle. Yields how many deliveries were looked at.

        All deliveries that are treated alike from now on refer to the queue and the consumer of the
        oldest of them. Args: release, of the store, takes a run; settled, returns those that wait
        for the end of a transaction, perhaps for ever.
        """
        kept: dict[tuple[object, ...], Delivery] = {}

        def give_up(looked_at: Sequence[Delivery]) -> int:
            for delivery in looked_at:
                queue, consumer = delivery.queue, delivery.consumer
                if not queue.is_deleted:
                    continue
                if not delivery.is_empty:
                    release(*delivery.taken)
                    delivery.empty()
                its_ms = queue.ack_timeout_ms(consumer, -1)
                alike = consumer is None, its_ms, queue.letter_strategy
                like = kept.setdefault(alike, delivery)
                delivery.queue, delivery.consumer = like.queue, like.consumer
                delivery.store_queue = like.store_queue
            return len(looked_at)

        tag = 0
        while True:
            # By tag: what comes and goes between two steps moves the places of the others.
            index = bisect_left(self._runs, tag, self._head, key=_FIRST_TAG)
            looked_at = self._runs[index : index + at_once]
            if not looked_at:
                break
            tag = looked_at[-1].end
            yield give_up(looked_at)
        index = 0
        while looked_at := [*settled()[index : index + at_once]]:
            index += len(looked_at)
            yield give_up(looked_at)

    def take_all(self) -> list[Delivery]:
        """Remove and return all of them."""
        taken = [*self.redeliveries, *self.clear(), *self.rolled_back]
        self.redeliveries = self.rolled_back = _NONE
        return taken

    def take_until(self, tag: int, next_tag: int) -> list[Delivery]:
        """Remove and return those up to a tag; 0 means all.

        Args: next_tag, which no delivery has had yet. Raises: PreconditionFailedError.
        """
        if self.count and tag < next_tag:
            first = self._runs[self._head].first_tag  # as `first`: each call costs
            if not tag or tag >= first:
                return self.remove(first, (tag or next_tag - 1) - first + 1)
        if tag:
            raise PreconditionFailedError(f"unknown delivery tag {tag}")
        return []

    def send_again(self) -> None:
        """Have all of them sent again."""
        self.redeliveries = deque(chain(self.redeliveries, self.clear()))

    def putting_back(self, deliveries: Iterable[Delivery]) -> Iterator[None]:
        """Put back those that a transaction had settled and has rolled back, in steps."""
        self.rolled_back = rest = deque(deliveries)
        while rest:
            for _ in range(min(len(rest), AT_ONCE)):
                self.insert(rest.popleft())
            if rest:
                yield


def settle_some(
    agenda: Agenda,
    deliveries: list[Delivery],
    settle: Callable[[Delivery], None],
    *,
    in_queue_order: bool,
) -> Iterator[None] | None:
    """Settle some of the deliveries. Returns the steps that settle the others; None if there are
    none. The list is emptied.

    If not all steps are taken, because the channel has gone, the rest follows in later rounds.
    Args: in_queue_order, because they go back to their queues: between two steps consumers may be
    given what is back already, and the first come first.
    """
    left = len(deliveries)
    if in_queue_order and left > AT_ONCE:
        batches = steps.in_order(deliveries, _FIRST_SEQUENCE, AT_ONCE)
    else:
        batches = steps.batches(deliveries, AT_ONCE)
    settling = _settling(agenda, batches, left, settle)
    for _ in settling:
        return settling
    return None


def _settling(
    agenda: Agenda,
    batches: Iterator[list[Delivery]],
    left: int,
    settle: Callable[[Delivery], None],
) -> Iterator[None]:
    """Settle the deliveries of the batches. Args: left, the number of deliveries in them."""
    batch: list[Delivery] = []
    try:
        while left:
            batch = next(batches)
            while batch:
                left -= 1
                settle(batch.pop())
            if left:
                yield
    finally:
        if left:
            rest = chain([batch], batches) if batch else batches
            agenda.background.append(_settling(agenda, rest, left, settle))
