"""A client of the simulated broker that keeps what it is sent."""

from typing import Any

from amqpstore import Message, Run
from amqpstore_server.broker.channels.channel import Channel
from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.channels.firehose import NOWHERE, Origin
from amqpstore_server.broker.messages.envelope import ParsedEnvelope, parse_envelope
from amqpstore_server.broker.queues.consumer import Consumer, ConsumerOptions
from amqpstore_server.protocol.content import BasicProperties, encode_properties
from tests.recording_outlet import (
    Back,
    Cancelled,
    Committed,
    Confirmed,
    Delivered,
    Late,
    RecordingOutlet,
    Refused,
    Told,
)
from tests.simulated_broker import SimulatedBroker


class Client(RecordingOutlet):
    """One channel, and what its client was sent. It is the channel's outlet."""

    def __init__(self, simulated: SimulatedBroker, origin: Origin = NOWHERE) -> None:
        super().__init__()
        self.channel = Channel(
            simulated.vhost,
            self,
            self,
            origin=origin,
            counters=simulated.vhost.channel_totals.begin(),
        )
        self.got: list[tuple[str, str]] = []
        """Consumer tag and body of each delivery."""
        self.redelivered: list[bool] = []
        self._tags: dict[str, int] = {}
        self._simulated = simulated

    def publish(self, exchange: str, key: str, *bodies: str, **properties: Any) -> None:
        """Publish messages with the same properties; by default they are persistent."""
        properties = {"delivery_mode": 2, **properties}
        self.channel.publish(*labelled(exchange, key, *bodies, **properties), Flags())
        self.channel.confirm_published()

    def consume(self, queue: str, tag: str, **options: Any) -> Consumer:
        """Start a consumer: options are those of ConsumerOptions, and its prefetch."""
        self.channel.consumer_window = options.pop("prefetch", 0), options.pop("prefetch_size", 0)
        found = self._simulated.vhost.queue(queue)
        return self.channel.consume(found, tag, ConsumerOptions(**options))

    def get(self, queue: str) -> str | None:
        """Fetch a message: its body."""
        got = self.channel.get(self._simulated.vhost.queue(queue), no_ack=False)
        if got is None:
            return None
        self._received("", *got)
        return self.got.pop()[1]

    def ack(self, body: str) -> None:
        self.channel.ack(self._tags[body], self._tags[body])

    def reject(self, body: str) -> None:
        self.channel.reject(self._tags[body], requeue=False)

    def requeue(self, body: str) -> None:
        self.channel.reject(self._tags[body], requeue=True)

    def bodies(self, tag: str) -> list[str]:
        """Return what a consumer was delivered."""
        return [body for its_tag, body in self.got if its_tag == tag]

    def _received(self, consumer_tag: str, first_tag: int, run: Run) -> None:
        for tag, message in enumerate(run.messages or (), first_tag):
            body = message.body.decode()
            self._tags[body] = tag
            self.got.append((consumer_tag, body))
            self.redelivered.append(run.delivery_count > 0)

    def deliver(self, consumer: Consumer, first_tag: int, run: Run) -> None:
        super().deliver(consumer, first_tag, run)
        self._received(consumer.tag, first_tag, run)

    @property
    def told(self) -> list[str]:
        """Everything that the client was told besides deliveries, in words."""
        return [said for one in self.record if (said := _in_words(one))]


def _in_words(told: Told) -> str:
    match told:
        case Back(message, reason):
            return f"returned {message.body.decode()} {reason.name}"
        case Confirmed(tags, multiple):
            return f"confirmed {tags[-1]}{' and before' if multiple else ''}"
        case Refused(tag):
            return f"refused {tag}"
        case Committed():
            return "committed"
        case Cancelled(tag):
            return f"cancelled {tag}"
        case Late(timeout_ms):
            return f"late by {timeout_ms}"
        case Delivered():
            return ""


def labelled(
    exchange: str, key: str, *bodies: str, **properties: Any
) -> tuple[ParsedEnvelope, list[Message]]:
    """Messages with one label."""
    of_all = BasicProperties(**properties)
    parsed = parse_envelope(exchange, key, encode_properties(of_all), of_all)
    return parsed, [Message(parsed, body.encode()) for body in bodies]


def publish(simulated: SimulatedBroker, queue: str, *bodies: str, **properties: object) -> None:
    """Publish into a queue by a client of its own, and let all that follows be done."""
    Client(simulated).publish("", queue, *bodies, **properties)
    simulated.settle()
