"""One AMQP channel: a handler for each method that a client may send on it, and the answers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from amqpstore import Message, Run
from amqpstore_server.amqp.arguments import wait_ms
from amqpstore_server.amqp.context import ChannelContext
from amqpstore_server.amqp.deliveries import add_deliveries, add_fetched, add_returns
from amqpstore_server.amqp.distributed import DTX_HANDLERS, Distributed
from amqpstore_server.amqp.envelopes import PublishSlice, in_order
from amqpstore_server.amqp.refusals import channel_close
from amqpstore_server.amqp.topology import TOPOLOGY_HANDLERS, Topology
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.channels.firehose import Origin
from amqpstore_server.broker.channels.gets import Gets
from amqpstore_server.broker.channels.outlet import Returned
from amqpstore_server.broker.definitions.accepted import NameScope, check_arguments
from amqpstore_server.broker.errors import ResourceExhaustedError
from amqpstore_server.broker.exchanges.replay import REPLAY_EXCHANGE
from amqpstore_server.broker.monitoring.counters import ChannelCounters
from amqpstore_server.broker.queues.consumer import Consumer, ConsumerOptions
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.queues.waiting import Fetched
from amqpstore_server.broker.rules.settings import CHECKS
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import REPLY_TO
from amqpstore_server.protocol.errors import (
    CommandInvalid,
    NotImplementedByServer,
    PreconditionFailed,
)
from amqpstore_server.protocol.events import Acks, ContentHeader, Publishes, Target
from amqpstore_server.protocol.frames import ack_frame, method_frame
from amqpstore_server.protocol.spec import ReplyCode
from amqpstore_server.protocol.states import CHANNEL, ChannelEvent, ChannelState

_RETURNS = {
    Returned.NO_ROUTE: ReplyCode.NO_ROUTE,
    Returned.NO_CONSUMERS: ReplyCode.NO_CONSUMERS,
}

_FLAGS = {
    (mandatory, immediate): Flags(mandatory, immediate)
    for mandatory in (False, True)
    for immediate in (False, True)
}


_OPEN = ChannelState.OPEN  # looked up once: members of an enum are slow to look up
_SILENT = (ChannelState.CLOSING, ChannelState.CLOSED)
"""The states in which nothing more is sent to the client."""


_FEW_KEYS = 8
"""A message with more routing keys is routed in steps."""


class AmqpChannel:
    """Channel `number` of a connection, from channel.open to channel.close-ok.

    It is the outlet of a channel of the broker, and passes the client's methods to that channel.
    `state` follows the state table of channels; methods from the client are handled in OPEN only.
    Args: check_consumers, called before a consumer is added; it may raise NotAllowed.
    """

    def __init__(
        self, context: ChannelContext, number: int, check_consumers: Callable[[], None]
    ) -> None:
        self.number = number
        self.state = ChannelState.OPEN
        self._fault: methods.ChannelClose | None = None
        """The error that the client is to be told of once what it was promised before is durable.
        """
        self._context = context
        self._outbox = context.outbox
        origin = Origin(context.name, number, context.access.user)
        counters = context.vhost.channel_totals.begin()
        self.broker_channel = Channel(
            context.vhost, context, self, context.transacted, origin, counters
        )
        self.broker_channel.max_prefetch = context.max_prefetch
        self._message_sizes = context.vhost.services.statistics.message_sizes
        self._gets = Gets(self.broker_channel, self._answer_get)
        self._topology = Topology(context.vhost, context.access, context, context.log, self._send)
        self._distributed = Distributed(self.broker_channel, context.access, self._send_late)
        self._check_consumers = check_consumers
        self._consumer_tags = 0

    # Methods from the client.

    def handle(self, method: methods.Method) -> Iterator[None] | None:
        """Carry out a method.

        Returns None, or an iterator to be taken to its end before anything else is done on this
        channel: the method takes several turns.
        Raises: AmqpError, BrokerError.
        """
        kind = type(method)
        if kind in TOPOLOGY_HANDLERS:
            return self._topology.handle(method)
        if kind in DTX_HANDLERS:
            steps = self._distributed.handle(method)
            return None if steps is None else _begun(steps)
        if kind in HANDLERS:
            return HANDLERS[kind](self, method)
        raise NotImplementedByServer(f"{method.name} is not supported")

    def publish(self, publishes: Publishes, published: set[AmqpChannel]) -> Iterator[None] | None:
        """Publish consecutive messages. They are deferred to the end of this round of reads, unless
        one needs a decision of its own: whether it is accepted or returned, where it goes, when it
        is confirmed.

        Args: published, the channels that confirm once the read was handled, which this is added to
        if the messages are not deferred.
        Returns None, or an iterator to be taken to its end before anything else is done on this
        channel: it takes several turns, for replays, or for messages that each go to many queues.
        Raises: AmqpError, BrokerError.
        """
        self._note_sizes(publishes.headers)
        if self._context.simple_targets.defer(publishes, self.broker_channel):
            return None
        published.add(self)
        # What was deferred before goes first: the order of one channel's publishes into one queue
        # is kept (section 4.7).
        self.broker_channel.flush_deferred()
        slices: Sequence[tuple[PublishSlice | Publishes, Target]]
        if publishes.is_mixed:
            slices = [(piece, piece.target) for piece in in_order(publishes)]
        else:
            slices = [(publishes, publishes.targets[0])]
        steps = self._publish(slices)
        for _ in steps:
            return steps
        return None

    def _note_sizes(self, headers: list[ContentHeader]) -> None:
        first, count = headers[0], len(headers)
        if count == 1:
            # As `observe` does; each call costs.
            sizes, size = self._message_sizes, first.body_size
            sizes.buckets[bisect_left(sizes.bounds, size)] += 1
            sizes.total += size
        # Publishes that are alike have one header, which `count` finds without comparing.
        elif first is headers[-1] and headers.count(first) == count:
            self._message_sizes.observe(first.body_size, count)
        else:
            self._message_sizes.observe_all([header.body_size for header in headers])

    def _publish(self, slices: Iterable[tuple[PublishSlice | Publishes, Target]]) -> Iterator[None]:
        """Publish messages, in steps: others may have their turn after each."""
        access, rights = self._context.access, self._topology.publish_rights
        channel = self.broker_channel
        services = channel.vhost.services
        for piece, target in slices:
            publish = target.publish
            is_replay = publish.exchange == REPLAY_EXCHANGE
            # Rights are asked for each time, also for a route that is known: a permission may have
            # been withdrawn since the last read.
            rights.check_exchange(publish.exchange)
            if is_replay:
                self._topology.check_history(publish.routing_key)
            flags = _FLAGS[publish.mandatory, publish.immediate]
            for envelope, messages in self._context.envelopes.messages(
                piece, target, channel.reply_to
            ):
                if is_replay:
                    yield from channel.replay(messages, flags)
                    continue
                if access.has_topics:
                    rights.check_keys(*envelope.address)
                if len(envelope.address[1]) > _FEW_KEYS:
                    yield from channel.vhost.router.searching(envelope)
                channel.publish(envelope, messages, flags)
                if services.is_budget_spent:
                    yield
                while channel.publisher.must_wait:
                    yield

    def ack(self, acks: Acks) -> Iterator[None] | None:
        """Ack delivery tags.

        Returns None, or an iterator to be taken to its end before anything else is done on this
        channel: there are very many. Raises: BrokerError.
        """
        if acks.multiple:
            return self.broker_channel.settling_until(acks.last, requeue=None)
        self.broker_channel.ack(acks.first, acks.last)
        return None

    def confirm_published(self) -> None:
        """Confirm what was published during this read."""
        self.broker_channel.confirm_published()

    def resume(self) -> None:
        """Continue deliveries: the connection is writable again."""
        if self.state is not _OPEN:
            return
        self.broker_channel.resume()
        self._gets.resume()

    @property
    def counters(self) -> ChannelCounters:
        """Counts of the messages that have passed through the channel."""
        return self.broker_channel.counters

    @property
    def has_unacked(self) -> bool:
        """Whether the client has deliveries that it may still ack."""
        return self.state is _OPEN and self.broker_channel.has_unacked

    def recheck_permissions(self) -> None:
        """End consumers and waiting gets that the user's changed permissions no longer allow."""
        if self.state is not _OPEN:
            return
        access = self._context.access
        self.broker_channel.end_consumers(access)
        self._gets.end_waits(access)

    def fail(self, close: methods.ChannelClose) -> None:
        """Close the channel because of an error of the client.

        The confirms of what it published before are sent first.
        """
        # What was accepted before the error is confirmed: a client that hears of the error alone
        # would publish it again.
        self.broker_channel.confirm_published()
        self._move(ChannelEvent.FAULT)
        self._fault = close

        def say_so() -> None:
            self.tell_fault()
            self._move(ChannelEvent.KEPT)
            self.broker_channel.forget_outlet()

        self.broker_channel.when_durable(say_so)

    def tell_fault(self) -> None:
        """Tell the client of the error that closes the channel, unless it was told before.

        To be called before a close of the client's is answered: it waits for nothing any more, and
        who is told only that its close is done takes what it published for accepted.
        """
        if self.state is ChannelState.FAILING and self._fault is not None:
            self._send(self._fault)
            self._fault = None

    def end(self, event: ChannelEvent) -> None:
        """End the channel: the client closes it, or the connection is over."""
        self._move(event)
        self.broker_channel.forget_outlet()
        if self.state is ChannelState.CLOSED:
            self.broker_channel.end_counting()

    def _move(self, event: ChannelEvent) -> None:
        """Move to the next state of the table. When the channel leaves OPEN, unacked messages are
        requeued.
        """
        before, self.state = self.state, CHANNEL[self.state][event]
        if before is _OPEN:
            self._gets.close()
            self.broker_channel.close()
            # These refer back to this channel: clearing them frees it at once, not at the next
            # garbage collection.
            del self._gets, self._topology, self._distributed

    @property
    def _is_silent(self) -> bool:
        """Whether nothing more is sent to the client on this channel."""
        return self.state in _SILENT

    # Calls from the broker (see Outlet).

    @property
    def is_writable(self) -> bool:
        outbox = self._outbox
        return outbox.byte_count < outbox.writable_bytes

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
        tag = consumer.tag.encode()
        limit = self._context.frame_max
        add_deliveries(self._outbox, self.number, bytes([len(tag)]) + tag, first_tag, run, limit)

    def returned(self, messages: Sequence[Message], reason: Returned) -> None:
        add_returns(self._outbox, self.number, _RETURNS[reason], messages, self._context.frame_max)

    def confirm(self, tag: int, *, multiple: bool) -> None:
        # A failing channel still confirms: promises from before the error are kept. After a close
        # from either side the client does not expect anything here.
        if self.state is _OPEN or self.state not in _SILENT:
            self._outbox.add(ack_frame(self.number, tag, multiple=multiple))

    def publish_refused(self, error: ResourceExhaustedError) -> None:
        self._context.refuse(self.number, error)

    def refuse(self, tag: int) -> None:
        self._send_late(methods.BasicNack(delivery_tag=tag, multiple=False, requeue=False))

    def committed(self) -> None:
        self._send_late(methods.TxCommitOk())

    def consumer_cancelled(self, consumer_tag: str) -> None:
        # An extension of RabbitMQ's: in the specification only clients send this method.
        if self._context.takes_cancels:
            self._send(methods.BasicCancel(consumer_tag=consumer_tag, no_wait=True))

    def ack_timed_out(self, timeout_ms: int) -> None:
        # RabbitMQ's words.
        reason = (
            f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: "
            f"{timeout_ms} ms. This timeout value can be configured, see consumers doc guide to "
            "learn more"
        )
        extra = {"channel": self.number, "reason": reason}
        self._context.log.warning("channel error", extra=extra)
        self.fail(channel_close(PreconditionFailed(reason)))

    def failed(self) -> None:
        if not self._is_silent:
            self._context.break_off()

    # Handlers.

    def _send(self, method: methods.Method) -> None:
        self._outbox.add(method_frame(self.number, method.encode()))

    def _send_late(self, method: methods.Method) -> None:
        """Send a method whose answer the client may no longer be waiting for."""
        if not self._is_silent:
            self._send(method)

    def on_channel_flow(self, method: methods.ChannelFlow) -> None:
        self.broker_channel.pause(paused=not method.active)
        self._send(methods.ChannelFlowOk(active=method.active))

    def on_basic_qos(self, method: methods.BasicQos) -> None:
        channel = self.broker_channel
        # RabbitMQ's meaning, on which clients rely: `global` is for the whole channel, and without
        # it the limit is for each consumer from now on. In the specification that is for the
        # channel, and `global` for the whole connection.
        if method.global_ or self._context.shares_prefetch:
            channel.window.messages = method.prefetch_count
            channel.window.size = method.prefetch_size
            channel.resume_soon()
        else:
            channel.consumer_window = method.prefetch_count, method.prefetch_size
        self._send(methods.BasicQosOk())

    def on_basic_consume(self, method: methods.BasicConsume) -> None:
        self._check_consumers()
        tag = method.consumer_tag
        while not tag or (not method.consumer_tag and tag in self.broker_channel.consumers):
            self._consumer_tags += 1
            tag = f"amq.ctag-{self.number}-{self._consumer_tags}"
        check_arguments(NameScope.CONSUMER, method.arguments, f"consumer '{tag}'")
        options = ConsumerOptions(
            *(method.no_ack, method.exclusive, _priority(method), _timeout_ms(method)),
            method.arguments,
        )
        # Deliveries are sent at the end of the turn, so consume-ok goes out before them.
        if method.queue == REPLY_TO:
            self.broker_channel.consume_replies(tag, options)
        else:
            queue = self._readable_queue(method.queue)
            self.broker_channel.consume(queue, tag, options, method.arguments)
        if method.arguments or method.no_local:
            self._context.vhost.note_consumer(
                method.queue, tag, method.arguments, no_local=method.no_local
            )
        if not method.no_wait:
            self._send(methods.BasicConsumeOk(consumer_tag=tag))

    def _readable_queue(self, name: str) -> Queue:
        """Return a queue as `_queue` does, if the client may also read its messages."""
        queue = self._topology.queue(name, "read")
        self._context.vhost.check_usable(queue)
        return queue

    def on_basic_cancel(self, method: methods.BasicCancel) -> None:
        # An unknown tag is answered too, as in RabbitMQ: its queue may have been deleted a moment
        # ago.
        self.broker_channel.cancel(method.consumer_tag)
        if not method.no_wait:
            self._send(methods.BasicCancelOk(consumer_tag=method.consumer_tag))

    def on_basic_cancel_ok(self, method: methods.BasicCancelOk) -> None:
        """Some clients answer the server's basic.cancel, though it asks for no answer."""

    def on_basic_get(self, method: methods.BasicGet) -> Iterator[None] | None:
        queue = self._readable_queue(method.queue)
        most = self._context.max_prefetch
        # basic.qos does not limit gets, so the operator's limit on prefetch has to be asked for
        # here.
        if most and not method.no_ack and self.broker_channel.unacked_count >= most:
            raise PreconditionFailed(
                f"the channel has {most} unacked messages, and may get no more: ack some before"
            )
        if self._gets.get(queue, no_ack=method.no_ack, wait_ms=wait_ms(method)):
            return None
        return self._get_in_chunks(method)

    def _get_in_chunks(self, method: methods.BasicGet) -> Iterator[None]:
        """Read a large message, a part in each step. Raises: as `on_basic_get`, as the queue, and
        the right to read it, may be gone by then.
        """
        yield
        while not self._gets.get(self._readable_queue(method.queue), no_ack=method.no_ack):
            yield

    def _answer_get(self, queue: Queue, fetched: Fetched) -> None:
        if fetched is None:
            self.broker_channel.found_nothing(queue)
            self._send(methods.BasicGetEmpty())
            return
        tag, run = fetched
        add_fetched(self._outbox, self.number, tag, run, queue.ready_count, self._context.frame_max)

    def on_basic_reject(self, method: methods.BasicReject) -> None:
        self.broker_channel.reject(method.delivery_tag, requeue=method.requeue)

    def on_basic_nack(self, method: methods.BasicNack) -> Iterator[None] | None:
        tag, requeue = method.delivery_tag, method.requeue
        if method.multiple:
            return self.broker_channel.settling_until(tag, requeue=requeue)
        self.broker_channel.reject(tag, requeue=requeue)
        return None

    def on_basic_recover(self, method: methods.BasicRecover) -> Iterator[None] | None:
        # Redelivered messages are sent at once, so the answer has to go out before them.
        self._send(methods.BasicRecoverOk())
        return self.broker_channel.recovering(requeue=method.requeue)

    def on_basic_recover_async(self, method: methods.BasicRecoverAsync) -> Iterator[None] | None:
        return self.broker_channel.recovering(requeue=method.requeue)

    def on_confirm_select(self, method: methods.ConfirmSelect) -> None:
        self.broker_channel.select_confirms()
        if not method.no_wait:
            self._send(methods.ConfirmSelectOk())

    def on_tx_select(self, _method: methods.TxSelect) -> None:
        self.broker_channel.select_transactions()
        self._send(methods.TxSelectOk())

    def on_tx_commit(self, _method: methods.TxCommit) -> Iterator[None] | None:
        return _begun(self.broker_channel.committing())

    def on_tx_rollback(self, _method: methods.TxRollback) -> Iterator[None] | None:
        return _begun(self._roll_back())

    def _roll_back(self) -> Iterator[None]:
        yield from self.broker_channel.rolling_back()
        self._send(methods.TxRollbackOk())

    def misplaced(self, method: methods.Method) -> None:
        # A method for the other direction is 503, an unknown one 540.
        raise CommandInvalid(f"{method.name} is sent by the server only")


def _begun(steps: Iterator[None]) -> Iterator[None] | None:
    """Take the first of some steps. Returns the others, or None if that was the last."""
    for _ in steps:
        return steps
    return None


def _priority(method: methods.BasicConsume) -> int:
    """Return the consumer's priority. Raises: PreconditionFailed."""
    priority = method.arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise PreconditionFailed(f"invalid arg 'x-priority' for a consumer: {priority!r}")
    return priority


def _timeout_ms(method: methods.BasicConsume) -> int | None:
    """Return the consumer's ack timeout; None if it has none. Raises: PreconditionFailed."""
    timeout: Any = method.arguments.get("x-consumer-timeout")
    if timeout is None:
        return None
    if reason := CHECKS["x-consumer-timeout"](timeout):
        raise PreconditionFailed(f"invalid arg 'x-consumer-timeout' for a consumer: {reason}")
    return int(timeout)


_Handler = Callable[[AmqpChannel, Any], Iterator[None] | None]

_FROM_CLIENT: dict[type[methods.Method], _Handler] = {
    methods.ChannelFlow: AmqpChannel.on_channel_flow,
    methods.BasicQos: AmqpChannel.on_basic_qos,
    methods.BasicConsume: AmqpChannel.on_basic_consume,
    methods.BasicCancel: AmqpChannel.on_basic_cancel,
    methods.BasicCancelOk: AmqpChannel.on_basic_cancel_ok,
    methods.BasicGet: AmqpChannel.on_basic_get,
    methods.BasicReject: AmqpChannel.on_basic_reject,
    methods.BasicNack: AmqpChannel.on_basic_nack,
    methods.BasicRecover: AmqpChannel.on_basic_recover,
    methods.BasicRecoverAsync: AmqpChannel.on_basic_recover_async,
    methods.ConfirmSelect: AmqpChannel.on_confirm_select,
    methods.TxSelect: AmqpChannel.on_tx_select,
    methods.TxCommit: AmqpChannel.on_tx_commit,
    methods.TxRollback: AmqpChannel.on_tx_rollback,
}

_FROM_SERVER: tuple[type[methods.Method], ...] = (
    methods.ExchangeDeclareOk,
    methods.ExchangeDeleteOk,
    methods.ExchangeBindOk,
    methods.ExchangeUnbindOk,
    methods.QueueDeclareOk,
    methods.QueueBindOk,
    methods.QueueUnbindOk,
    methods.QueuePurgeOk,
    methods.QueueDeleteOk,
    methods.BasicQosOk,
    methods.BasicConsumeOk,
    methods.BasicReturn,
    methods.BasicDeliver,
    methods.BasicGetOk,
    methods.BasicGetEmpty,
    methods.BasicRecoverOk,
    methods.TxSelectOk,
    methods.TxCommitOk,
    methods.TxRollbackOk,
    methods.DtxSelectOk,
    methods.DtxStartOk,
    methods.DtxEndOk,
    methods.DtxPrepareOk,
    methods.DtxCommitOk,
    methods.DtxRollbackOk,
    methods.DtxForgetOk,
    methods.DtxRecoverOk,
    methods.DtxGetTimeoutOk,
    methods.DtxSetTimeoutOk,
    methods.ConfirmSelectOk,
    methods.ChannelOpenOk,
    methods.ChannelFlowOk,
)

HANDLERS: dict[type[methods.Method], _Handler] = {
    **_FROM_CLIENT,
    **dict.fromkeys(_FROM_SERVER, AmqpChannel.misplaced),
}
"""The handler of each other method on an open channel; a method that is in neither table is
answered with 540.
"""
