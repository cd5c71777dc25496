"""Counts of a queue and its channels equal a recount, whatever happens to them."""

import random
from itertools import count
from typing import Any

import pytest

from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.rules.policy import Policy
from tests.simulated_broker import SimulatedBroker, ack_until, reject_until
from tests.unit.broker.simulated import Client

POLICIES: list[dict[str, Any]] = [
    {"max-length-bytes": 60},
    {"max-length": 4, "overflow": "reject-publish"},
    {"max-length-bytes": 40, "max-length": 3, "overflow": "reject-publish-dlx"},
    {"message-ttl": 30, "delivery-limit": 2},
    {"single-active-consumer": True, "max-length-bytes": 100},
    {},
]


class Dice:
    """Clients that do what is drawn to two queues, each with the other's dead letters."""

    def __init__(self, seed: int) -> None:
        self.simulated = simulated = SimulatedBroker()
        for queue, other in (("q", "r"), ("r", "q")):
            simulated.queue(
                queue,
                max_priority=2,
                max_length_bytes=200,
                dead_letter_exchange="",
                dead_letter_routing_key=other,
            )
        simulated.exchange("both", "x-delayed-message", x_delayed_type="fanout")
        for queue in "qr":
            simulated.bind("both", queue)
        self._rng = random.Random(seed)
        self._names = map(str, count())
        self._clients = [Client(simulated) for _ in range(3)]
        self._clients[0].channel.select_transactions()
        self._clients[1].channel.select_confirms()
        self._clients[2].channel.window.messages = 5

    def throw(self) -> None:
        rng = self._rng
        client = rng.choice(self._clients)
        rng.choice([self._publish, self._publish, self._consume, self._settle_some, self._other])(
            client
        )
        if rng.random() < 0.4:
            self.simulated.settle()

    def _publish(self, client: Client) -> None:
        rng = self._rng
        bodies = [next(self._names) + "x" * rng.randint(0, 20) for _ in range(rng.randint(1, 4))]
        more = {"expiration": str(rng.randint(0, 40))} if rng.random() < 0.2 else {}
        mode = rng.choice([1, 2, 2])
        headers = {"x-delay": rng.randint(0, 30)} if rng.random() < 0.3 else {}
        exchange, key = rng.choice([("", "q"), ("", "r"), ("both", "")])
        client.publish(
            exchange,
            key,
            *bodies,
            priority=rng.choice([0, 0, 1, 2, 7]),
            delivery_mode=mode,
            headers=headers,
            **more,
        )

    def _consume(self, client: Client) -> None:
        rng = self._rng
        tag = rng.choice("ab")
        if tag in client.channel.consumers:
            client.channel.cancel(tag)
        else:
            prefetch, size = rng.choice([(0, 0), (1, 0), (3, 0), (0, 30)])
            no_ack = rng.random() < 0.2
            queue = rng.choice("qr")
            client.consume(queue, tag, prefetch=prefetch, prefetch_size=size, no_ack=no_ack)

    def _settle_some(self, client: Client) -> None:
        rng = self._rng
        channel = client.channel
        tags = [
            one.first_sequence + place for one in channel._unacked for place in range(one.count)
        ]
        if not tags:
            client.get(rng.choice("qr"))
            return
        tag = rng.choice(tags)
        way = rng.randrange(5)
        if way == 0:
            channel.ack(tag, tag)
        elif way == 1:
            ack_until(channel, tag)
        elif way == 2:
            channel.reject(tag, requeue=rng.random() < 0.6)
        elif way == 3:
            reject_until(channel, tag, requeue=rng.random() < 0.6)
        else:
            channel.recover(requeue=rng.random() < 0.5)

    def _other(self, client: Client) -> None:
        rng = self._rng
        simulated = self.simulated
        way = rng.randrange(6)
        if way == 0:
            simulated.vhost.queue(rng.choice("qr")).backlog.purge()
        elif way == 1:
            definition = rng.choice(POLICIES)
            policy = Policy("p", rng.choice(["^q$", "^[qr]$"]), definition=definition)
            simulated.vhost.policy_settings.define([policy], operator=False)
        elif way == 2:
            simulated.pass_time(rng.randint(0, 40))
        elif way == 3 and client.channel.transaction is not None:
            client.channel.rollback()
        elif client.channel.transaction is not None:
            try:
                client.channel.commit()
            except BrokerError:
                client.channel.rollback()
        elif way == 4:
            client.channel.pause(paused=not client.channel.is_paused)

    def recount(self) -> None:
        """All of it, once nothing is on its way."""
        simulated = self.simulated
        simulated.settle()
        for name in "qr":
            queue = simulated.vhost.queue(name)
            ready = simulated.ready(name)
            assert queue.ready_count == len(ready)
            settings = queue.settings
            if settings.max_length_bytes is not None:
                assert queue.backlog.ready_bytes == sum(map(len, ready))
                if not settings.rejects:
                    assert queue.backlog.ready_bytes <= settings.max_length_bytes
            if settings.max_length is not None and not settings.rejects:
                assert len(ready) <= settings.max_length
            assert (queue.coming, queue.coming_bytes) == (0, 0)
        for client in self._clients:
            self._recount_channel(client)

    def _recount_channel(self, client: Client) -> None:
        channel = client.channel
        held = list(channel._unacked)
        if channel.transaction is not None:
            held += channel.transaction._settled
        of_consumers = [one for one in held if one.consumer is not None]
        assert channel.window.unacked == sum(one.count for one in of_consumers)
        assert channel.window.unacked_bytes == sum(one.run.body_bytes for one in of_consumers)
        for consumer in channel.consumers.values():
            own = [one for one in of_consumers if one.consumer is consumer]
            assert consumer.window.unacked == sum(one.count for one in own)
            if consumer.window.messages:
                assert consumer.window.unacked <= consumer.window.messages


@pytest.mark.parametrize("seed", range(30))
def test_what_is_counted_is_what_is_there(seed: int) -> None:
    dice = Dice(seed)
    for step in range(150):
        dice.throw()
        if step % 10 == 9:
            dice.recount()
