"""A channel: what one client publishes, gets and has not acked yet, in the order of its tags."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from amqpstore import Message, Run
from amqpstore.runs import RunList
from server.broker.consumer import Consumer
from server.broker.errors import NotAllowedError, PreconditionFailedError

if TYPE_CHECKING:
    from server.broker.outlet import Outlet
    from server.broker.queue import Queue
    from server.broker.vhost import VirtualHost


class Delivery:
    """A run that went out under contiguous delivery tags, from `first_sequence` on.

    `consumer` is None for what was fetched with get.
    """

    __slots__ = ("consumer", "first_sequence", "queue", "run")

    def __init__(
        self, first_sequence: int, queue: Queue, consumer: Consumer | None, run: Run
    ) -> None:
        self.first_sequence = first_sequence
        self.queue = queue
        self.consumer = consumer
        self.run = run

    @property
    def count(self) -> int:
        """Messages in it."""
        return self.run.count

    @property
    def end(self) -> int:
        """The tag after its last."""
        return self.first_sequence + self.run.count

    def split(self, count: int) -> Delivery:
        """Take the first `count` messages (fewer than there are) off, as their own delivery."""
        head = Delivery(self.first_sequence, self.queue, self.consumer, self.run.split(count))
        self.first_sequence += count
        return head


class _Published(NamedTuple):
    """Publishes of contiguous tags, and whether they entered the log."""

    first: int
    last: int
    logged: bool


class Channel:
    """One channel of a connection. `connection` is any object: it owns exclusive queues.

    `prefetch` limits what all its consumers together have unacked (0: nothing does);
    `consumer_prefetch` is what a new consumer of it gets as its own limit.
    """

    def __init__(self, vhost: VirtualHost, connection: object, outlet: Outlet) -> None:
        self.vhost = vhost
        self.connection = connection
        self.outlet = outlet
        self.consumers: dict[str, Consumer] = {}
        self.prefetch = 0
        self.consumer_prefetch = 0
        self.consumers_unacked = 0
        self.confirms = False
        self._unacked: RunList[Delivery] = RunList()
        self._next_delivery_tag = 1
        self._next_publish_tag = 1
        self._published: list[_Published] = []
        self._waiting_confirms = 0

    # Publishing.

    def publish(
        self, exchange: str, routing_key: str, messages: list[Message], *, mandatory: bool
    ) -> None:
        """Route messages that are alike but for headers and body: all persistent, or none.

        Raises: NotFoundError, AccessRefusedError (an internal exchange).
        """
        queues = self.vhost.route(exchange, routing_key)
        logged = self.vhost.publish(queues, messages) if queues else False
        if mandatory and not queues:
            self.outlet.returned(messages)
        if self.confirms:
            first = self._next_publish_tag
            self._next_publish_tag += len(messages)
            self._published.append(_Published(first, self._next_publish_tag - 1, logged))

    def settle(self) -> None:
        """Confirm what was published since the last call: at once, or when it is durable."""
        published, self._published = self._published, []
        first = last = 0
        for place, (run_first, run_last, logged) in enumerate(published):
            first = first or run_first
            last = run_last
            if place + 1 < len(published) and published[place + 1].logged == logged:
                continue
            if logged:
                self._waiting_confirms += 1
                self.vhost.store.when_durable(partial(self._confirm_logged, first, last))
            else:
                self._confirm_unlogged(first, last)
            first = 0

    def _confirm_logged(self, first: int, last: int) -> None:
        # Batches become durable in order, and all else was confirmed before: multiple is true.
        self._waiting_confirms -= 1
        self.outlet.confirm(last, multiple=last > first)

    def _confirm_unlogged(self, first: int, last: int) -> None:
        if not self._waiting_confirms:
            self.outlet.confirm(last, multiple=last > first)
            return
        for tag in range(first, last + 1):
            self.outlet.confirm(tag, multiple=False)

    # Consuming.

    def consume(self, queue: Queue, tag: str, *, no_ack: bool, exclusive: bool) -> Consumer:
        """Start a consumer. Raises: NotAllowedError (the tag is taken), AccessRefusedError."""
        if tag in self.consumers:
            raise NotAllowedError(f"attempt to reuse consumer tag '{tag}'")
        consumer = Consumer(
            self,
            queue,
            tag,
            no_ack=no_ack,
            exclusive=exclusive,
            prefetch=self.consumer_prefetch,
        )
        queue.add_consumer(consumer)
        self.consumers[tag] = consumer
        return consumer

    def cancel(self, tag: str) -> None:
        """End a consumer, where there is one; what it has unacked stays with the client."""
        if consumer := self.consumers.pop(tag, None):
            self.vhost.remove_consumer(consumer)

    def deliver(self, consumer: Consumer, run: Run) -> None:
        """Send a run to one of the channel's consumers."""
        first_tag = self._next_delivery_tag
        self._next_delivery_tag += run.count
        if not consumer.no_ack:
            self._unacked.append(Delivery(first_tag, consumer.queue, consumer, run))
            consumer.unacked += run.count
            self.consumers_unacked += run.count
        self.outlet.deliver(consumer, first_tag, run)

    def get(self, queue: Queue, *, no_ack: bool) -> tuple[int, Run] | None:
        """One message, with its delivery tag; None when nothing is ready."""
        while queue.ready_count:
            if run := queue.take(1, acked=no_ack):
                tag = self._next_delivery_tag
                self._next_delivery_tag += 1
                if not no_ack:
                    self._unacked.append(Delivery(tag, queue, None, run))
                return tag, run
        return None

    def ack(self, first: int, last: int) -> None:
        """Ack the tags `first` to `last`. Raises: PreconditionFailedError, at the first unknown."""
        self._settle_each(first, last, requeue=None)

    def ack_until(self, tag: int) -> None:
        """Ack all up to `tag`; 0 is all there are. Raises: PreconditionFailedError."""
        self._settle_until(tag, requeue=None)

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Put one message back, or drop it. Raises: PreconditionFailedError."""
        self._settle_each(tag, tag, requeue=requeue)

    def reject_until(self, tag: int, *, requeue: bool) -> None:
        """Put all messages up to `tag` back, or drop them. Raises: PreconditionFailedError."""
        self._settle_until(tag, requeue=requeue)

    def recover(self) -> None:
        """Put everything unacked back in its queue."""
        for delivery in self._unacked.clear():
            self._settle(delivery, requeue=True)

    def close(self) -> None:
        """End the consumers and put everything unacked back."""
        for consumer in self.consumers.values():
            self.vhost.remove_consumer(consumer)
        self.consumers.clear()
        self.recover()

    def resume(self) -> None:
        """The client takes deliveries again: have the queues of its consumers look."""
        for consumer in self.consumers.values():
            consumer.queue.touch()

    def _settle_each(self, first: int, last: int, *, requeue: bool | None) -> None:
        """Settle tags that the client named one by one, up to the first that it may not name."""
        deliveries = self._unacked.remove(first, last - first + 1)
        expected = first
        for place, delivery in enumerate(deliveries):
            if delivery.first_sequence != expected:
                for unreached in deliveries[place:]:
                    self._unacked.insert(unreached)
                break
            expected = delivery.end
            self._settle(delivery, requeue=requeue)
        if expected <= last:
            raise PreconditionFailedError(f"unknown delivery tag {expected}")

    def _settle_until(self, tag: int, *, requeue: bool | None) -> None:
        """Settle all that is unacked up to `tag`."""
        unacked = self._unacked
        if tag and (tag >= self._next_delivery_tag or not unacked.count):
            raise PreconditionFailedError(f"unknown delivery tag {tag}")
        if not unacked.count:
            return
        first = unacked.first.first_sequence
        last = tag or self._next_delivery_tag - 1
        if last < first:
            raise PreconditionFailedError(f"unknown delivery tag {tag}")
        for delivery in unacked.remove(first, last - first + 1):
            self._settle(delivery, requeue=requeue)

    def _settle(self, delivery: Delivery, *, requeue: bool | None) -> None:
        if consumer := delivery.consumer:
            consumer.unacked -= delivery.count
            self.consumers_unacked -= delivery.count
            consumer.queue.touch()
        if requeue:
            delivery.queue.requeue(delivery.run)
        else:
            delivery.queue.ack(delivery.run)
