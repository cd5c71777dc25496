"""The state machine: clients, operators, the clock and power cuts, acting on the broker and its
model alike.

Past 600 lines because a state machine is one class: a rule for each thing that can be done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import amqpstore_server.broker.rules.policy
from amqpstore.format.departures import Departure
from amqpstore_server.broker.errors import BrokerError
from amqpstore_server.broker.exchanges.base import Exchange as BrokerExchange
from amqpstore_server.broker.monitoring.departures import reasons_of_all, reasons_of_queue
from amqpstore_server.broker.queues.consumer import ConsumerOptions
from amqpstore_server.broker.queues.queue import Queue as BrokerQueue
from tests.property.broker_letters import Letter
from tests.property.broker_model import Model, RefusedError
from tests.property.broker_queues import Channel, Entry, Queue, Window
from tests.property.broker_topology import Binding, Exchange, Policy
from tests.property.broker_world import World
from tests.simulated_broker import START_MS, ack_until, reject_until

Result = TypeVar("Result")

CONNECTIONS = {1: "first", 2: "first", 3: "second"}
"""The channels, and the name of each one's connection."""

queue_names = st.sampled_from(["q0", "q1", "q2", "q3"])
picks = st.integers(0, 40)
"""Draws an existing one; UNKNOWN does not exist."""

UNKNOWN = 37

exchange_names = st.sampled_from(["e0", "e1", "e2", "amq.fanout", "amq.topic"])
routing_keys = st.sampled_from(["q0", "q1", "q2", "q3", "a", "a.b", ""])
binding_keys = st.sampled_from(["q0", "a", "a", "a.*", "#", ""])
channels = st.sampled_from(list(CONNECTIONS))
often = st.sampled_from([True, True, True, False])
seldom = st.sampled_from([True, False, False, False, False])
indexes = st.integers(0, 1000)

_dead_letters = st.sampled_from(
    [
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q0"},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q1"},
        {"x-dead-letter-exchange": "e0"},
        {"x-dead-letter-exchange": "e1"},
        {"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "a.b"},
        {"x-dead-letter-exchange": "nowhere"},
        {"x-dead-letter-routing-key": "q1"},
    ]
)
# Nothing expires in the same ms as a queue: it is undefined which comes first.
_limits: dict[str, list[Any]] = {
    "message-ttl": [0, 10, 20, 50],
    "expires": [31, 71],
    "max-length": [0, 1, 2, 3],
    "max-length-bytes": [0, 20, 45],
    "overflow": ["drop-head", "reject-publish", "reject-publish-dlx"],
    "max-priority": [1, 2],
    "delivery-limit": [0, 1, 2],
    "queue-mode": ["default", "lazy"],
    "single-active-consumer": [True],
}
_limit = st.sampled_from([(name, value) for name, values in _limits.items() for value in values])
queue_arguments = st.one_of(
    st.just({}),
    _dead_letters,
    st.tuples(st.lists(_limit, min_size=1, max_size=3), st.just({}) | _dead_letters).map(
        lambda drawn: {**{f"x-{name}": value for name, value in drawn[0]}, **drawn[1]}
    ),
)
headers = st.sampled_from(
    [
        {},
        {},
        {},
        {"CC": ["q1"]},
        {"BCC": ["q2", "a"]},
        {"CC": ["a"], "BCC": ["q0"]},
        {"size": 1},
        {"size": 1, "colour": "red"},
    ]
)
policies = st.lists(
    st.builds(
        Policy,
        st.sampled_from(["low", "high"]),
        st.sampled_from(["q", "q0", "q1", "e"]),
        st.sampled_from(["all", "queues", "exchanges"]),
        st.integers(0, 1),
        st.one_of(
            st.lists(
                _limit.filter(lambda limit: limit[0] != "single-active-consumer"), max_size=2
            ).map(dict),
            st.just({"alternate-exchange": "e1"}),
            st.just({"dead-letter-exchange": "e0"}),
        ),
    ),
    max_size=2,
    unique_by=lambda policy: policy.name,
)


class BrokerAgainstModel(RuleBasedStateMachine):
    """One virtual host, two connections with three channels, over many lives of the process.

    Half of the histories make everything durable after each rule; in the others that is a rule
    of its own, so that much is under way at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.model = Model(self.world, START_MS)
        self.is_eager = True
        self.is_sound = False
        self.bodies = 0
        self.consumers = 0
        self._open_channels()

    def teardown(self) -> None:
        if self.is_sound:
            for name in list(self.model.queues):
                self.drain(name)
        self.world.store.abandon()

    @initialize(
        is_eager=st.booleans(),
        first=queue_arguments,
        second=queue_arguments,
        kind=st.sampled_from(["direct", "fanout", "topic"]),
        messages=st.integers(0, 2),
        consumers=st.lists(st.tuples(channels, picks), min_size=1, max_size=4),
        mode=st.sampled_from(["", "confirms", "transactions"]),
        is_private=st.booleans(),
    )
    def begin(
        self,
        is_eager: bool,
        first: dict[str, Any],
        second: dict[str, Any],
        kind: str,
        messages: int,
        consumers: list[tuple[int, int]],
        mode: str,
        is_private: bool,
    ) -> None:
        self.is_eager = is_eager
        self.declare_exchange("e0", kind, True, False, False, None)
        self.declare_exchange("e1", "fanout", True, False, False, None)
        for name, arguments in (("q0", first), ("q1", second)):
            self.declare_queue(1, name, True, False, False, arguments)
            self.bind("e0", "queue", name, "a", {})
        self.bind("e1", "queue", "q1", "", {})
        if is_private:
            self.declare_queue(3, "q2", True, True, False, {})
        for number in CONNECTIONS:
            self.qos(number, messages, 0, number == 3)
        for number, pick in consumers:
            self.consume(number, pick, False, False, 0)
        if mode == "confirms":
            self.select_confirms(1)
        elif mode:
            self.select_transactions(1)

    # Exchanges, queues, bindings, policies.

    @rule(
        name=exchange_names,
        kind=st.sampled_from(["direct", "fanout", "topic", "headers"]),
        durable=often,
        auto_delete=seldom,
        internal=seldom,
        alternate=st.sampled_from([None, None, "e1", "e2", "amq.fanout"]),
    )
    def declare_exchange(
        self,
        name: str,
        kind: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        alternate: str | None,
    ) -> None:
        arguments = {"alternate-exchange": alternate} if alternate else {}
        declared = Exchange(name, kind, durable, auto_delete, internal, arguments)
        self._both(
            lambda: self.world.vhost.exchange_definitions.declare(
                name,
                kind,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments,
            ),
            lambda: self.model.declare_exchange(declared),
        )

    @rule(
        what=st.sampled_from(["exchange", "queue", "binding", "messages"]),
        number=channels,
        pick=picks,
        name=exchange_names,
        careful=st.booleans(),
    )
    def remove(self, what: str, number: int, pick: int, name: str, careful: bool) -> None:
        if what == "exchange":
            self.delete_exchange(name, careful)
        elif what == "queue":
            self.delete_queue(number, pick, careful, pick % 2 == 0)
        elif what == "messages":
            self.purge(number, pick)
        elif self.model.topology.bindings:
            self.unbind(pick)

    def delete_exchange(self, name: str, if_unused: bool) -> None:
        self._both(
            lambda: self.world.vhost.exchange_definitions.delete(name, if_unused=if_unused),
            lambda: self.model.delete_exchange(name, if_unused=if_unused),
        )

    @rule(
        number=channels,
        name=queue_names,
        durable=often,
        exclusive=seldom,
        auto_delete=seldom,
        arguments=queue_arguments,
    )
    def declare_queue(
        self,
        number: int,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
    ) -> None:
        if "x-dead-letter-exchange" not in arguments:
            arguments = {key: value for key, value in arguments.items() if "routing-key" not in key}
        connection = CONNECTIONS[number]
        owner = connection if exclusive else None
        self._both(
            lambda: (
                self.world.vhost.declare_queue(
                    name,
                    durable=durable,
                    exclusive=exclusive,
                    auto_delete=auto_delete,
                    arguments=arguments,
                    connection=connection,
                ).name
            ),
            lambda: (
                self.model.declare_queue(
                    Queue(name, durable, auto_delete, arguments, owner), connection
                ).name
            ),
        )

    @precondition(lambda self: self.model.queues)
    @rule(number=channels, pick=picks)
    def declare_again(self, number: int, pick: int) -> None:
        """Declare a queue as it is: that counts as a use of it."""
        queue = list(self.model.queues.values())[pick % len(self.model.queues)]
        is_own = queue.owner is not None
        self.declare_queue(
            number, queue.name, queue.durable, is_own, queue.auto_delete, dict(queue.arguments)
        )

    def delete_queue(self, number: int, pick: int, if_unused: bool, if_empty: bool) -> None:
        name = self._picked(pick)

        def delete() -> int:
            answers: list[int] = []
            queue = self._queue(name, number)
            self.world.vhost.delete_queue(
                queue, if_unused=if_unused, if_empty=if_empty, answer=answers.append
            )
            (count,) = answers
            return count

        self._both(
            delete,
            lambda: self.model.delete_queue(
                self.model.queue(name, CONNECTIONS[number]), if_unused=if_unused, if_empty=if_empty
            ),
        )

    def purge(self, number: int, pick: int) -> None:
        name = self._picked(pick)
        self._both(
            lambda: self._queue(name, number).backlog.purge(),
            lambda: self.model.purge(self.model.queue(name, CONNECTIONS[number])),
        )

    @rule(
        source=exchange_names,
        kind=st.sampled_from(["queue", "queue", "exchange"]),
        pick=picks,
        exchange=exchange_names,
        key=binding_keys,
        arguments=st.sampled_from(
            [{}, {"x-match": "any", "size": 1}, {"size": 1, "colour": None}, {"x-match": "any"}]
        ),
    )
    def bind_anything(
        self,
        source: str,
        kind: str,
        pick: int,
        exchange: str,
        key: str,
        arguments: dict[str, Any],
    ) -> None:
        name = exchange if kind == "exchange" else self._picked(pick)
        self.bind(source, kind, name, key, arguments)

    def bind(
        self, source: str, kind: str, name: str, key: str, arguments: Mapping[str, Any]
    ) -> None:
        self._both(
            lambda: self.world.vhost.bindings.bind(
                self._end(kind, name), source, key, dict(arguments)
            ),
            lambda: self.model.bind(Binding(source, kind, name, key, arguments)),
        )

    def unbind(self, place: int) -> None:
        bindings = self.model.topology.bindings
        chosen = bindings[place % len(bindings)]
        source, kind, name, key, arguments = chosen
        self._both(
            lambda: self.world.vhost.bindings.unbind(
                self._end(kind, name), source, key, dict(arguments)
            ),
            lambda: self.model.unbind(chosen),
        )

    @rule(chosen=policies, operator=st.booleans())
    def define_policies(self, chosen: list[Policy], operator: bool) -> None:
        made = [
            amqpstore_server.broker.rules.policy.Policy(
                policy.name,
                f"^{policy.prefix}",
                policy.apply_to,
                policy.priority,
                dict(policy.definition),
            )
            for policy in chosen
        ]
        self._both(
            lambda: self.world.vhost.policy_settings.define(made, operator=operator),
            lambda: self.model.define_policies(chosen, operator=operator),
        )

    # Publishing.

    @rule(
        number=channels,
        exchange=st.sampled_from(["", "", "", "e0", "e0", "e1", "e2", "amq.fanout", "amq.topic"]),
        key=routing_keys,
        sizes=st.lists(st.integers(0, 20), min_size=1, max_size=4),
        persistent=often,
        priority=st.sampled_from([None, None, 0, 1, 2, 9]),
        expiration=st.sampled_from([None, None, None, "0", "10", "30"]),
        more=headers,
        mandatory=seldom,
        immediate=seldom,
    )
    def publish(
        self,
        number: int,
        exchange: str,
        key: str,
        sizes: list[int],
        persistent: bool,
        priority: int | None,
        expiration: str | None,
        more: dict[str, Any],
        mandatory: bool,
        immediate: bool,
    ) -> None:
        letters = []
        for size in sizes:
            self.bodies += 1
            body = b"%05d" % self.bodies + b"." * size
            letters.append(Letter(exchange, key, body, persistent, priority, expiration, more))
        self._on_channel(
            number,
            lambda: self.world.publish(number, letters, mandatory=mandatory, immediate=immediate),
            lambda channel: self.model.publish(
                channel, letters, mandatory=mandatory, immediate=immediate
            ),
        )

    @rule(number=channels, pick=picks, count=st.integers(1, 4), persistent=often)
    def publish_plainly(self, number: int, pick: int, count: int, persistent: bool) -> None:
        name = self._picked(pick)
        self.publish(number, "", name, [1] * count, persistent, None, None, {}, False, False)

    @rule(
        number=channels,
        pick=picks,
        persistent=often,
        priority=st.sampled_from([None, 1, 2]),
        expiration=st.sampled_from([None, "10", "30"]),
        mandatory=seldom,
        immediate=seldom,
    )
    def publish_one(
        self,
        number: int,
        pick: int,
        persistent: bool,
        priority: int | None,
        expiration: str | None,
        mandatory: bool,
        immediate: bool,
    ) -> None:
        name = self._picked(pick)
        self.publish(
            number, "", name, [4], persistent, priority, expiration, {}, mandatory, immediate
        )

    @rule(number=channels, transactions=st.booleans())
    def select(self, number: int, transactions: bool) -> None:
        if transactions:
            self.select_transactions(number)
        else:
            self.select_confirms(number)

    def select_confirms(self, number: int) -> None:
        self._on_channel(
            number,
            lambda: self.world.channels[number].select_confirms(),
            lambda channel: self.model.select_confirms(channel),
        )

    # Consuming.

    @rule(
        number=channels,
        pick=picks,
        no_ack=seldom,
        exclusive=st.sampled_from([False] * 9 + [True]),
        priority=st.integers(0, 1),
    )
    def consume(self, number: int, pick: int, no_ack: bool, exclusive: bool, priority: int) -> None:
        name = self._picked(pick)
        self.consumers += pick != UNKNOWN - 1
        tag = f"c{self.consumers}"
        options = ConsumerOptions(no_ack, exclusive, priority)
        self._on_channel(
            number,
            lambda: self._consume(number, name, tag, options),
            lambda channel: self.model.consume(
                channel,
                self.model.queue(name, channel.connection),
                tag,
                no_ack=no_ack,
                exclusive=exclusive,
                priority=priority,
            ),
        )

    def _consume(self, number: int, name: str, tag: str, options: ConsumerOptions) -> None:
        self.world.channels[number].consume(self._queue(name, number), tag, options)

    @rule(
        number=channels,
        messages=st.sampled_from([0, 1, 1, 2, 3]),
        size=st.sampled_from([0, 0, 0, 12, 30]),
        whole_channel=st.booleans(),
    )
    def qos(self, number: int, messages: int, size: int, whole_channel: bool) -> None:
        def ask() -> None:
            channel = self.world.channels[number]
            if whole_channel:
                channel.window.messages, channel.window.size = messages, size
                channel.resume()
            else:
                channel.consumer_window = messages, size

        self._on_channel(
            number,
            ask,
            lambda channel: self.model.qos(
                channel, Window(messages, size), whole_channel=whole_channel
            ),
        )

    @rule(number=channels, pick=picks)
    def cancel(self, number: int, pick: int) -> None:
        known = ["unknown", *self.model.channels[number].consumers]
        tag = known[pick % len(known)]
        self._on_channel(
            number,
            lambda: self.world.channels[number].cancel(tag),
            lambda channel: self.model.cancel(channel, tag),
        )

    @rule(number=channels, paused=st.booleans())
    def flow(self, number: int, paused: bool) -> None:
        def pause(channel: Channel) -> None:
            channel.is_paused = paused

        self._on_channel(number, lambda: self.world.channels[number].pause(paused=paused), pause)

    @rule(number=channels, pick=picks, no_ack=st.booleans())
    def get_one(self, number: int, pick: int, no_ack: bool) -> None:
        self.get(number, self._picked(pick), no_ack)

    def get(self, number: int, name: str, no_ack: bool) -> None:
        self._on_channel(
            number,
            lambda: self.world.get(number, self._queue(name, number).name, no_ack=no_ack),
            lambda channel: self.model.get(
                channel, self.model.queue(name, channel.connection), no_ack=no_ack
            ),
        )

    @rule(number=channels, pick=picks, key=routing_keys, no_ack=st.booleans())
    def publish_and_get(self, number: int, pick: int, key: str, no_ack: bool) -> None:
        """Publish to many queues, and fetch from one before any of them had its turn."""
        self.bodies += 1
        letters = [Letter("amq.fanout", key, b"%05d" % self.bodies, True, None, None, {})]
        name = self._picked(pick)

        def really() -> object:
            self.world.publish(number, letters, mandatory=False, immediate=False)
            return self.world.get(number, self._queue(name, number).name, no_ack=no_ack)

        def modelled(channel: Channel) -> object:
            self.model.publish(channel, letters, mandatory=False, immediate=False)
            queue = self.model.queue(name, channel.connection)
            return self.model.get(channel, queue, no_ack=no_ack)

        self._on_channel(number, really, modelled)

    def drain(self, name: str) -> None:
        """Fetch everything, to see what it is."""
        queue = self.model.queues.get(name)
        number = 3 if queue and queue.owner == "second" else 1
        for _ in range(len(queue.ready) if queue else 0):
            self.get(number, name, True)

    @precondition(lambda self: self._holders)
    @rule(pick=picks, how=st.sampled_from(["ack", "requeue", "reject"]))
    def settle_one(self, pick: int, how: str) -> None:
        """The oldest of a channel's."""
        if how == "ack":
            self.ack(pick, False, 0)
        else:
            self.reject(pick, False, 0, how == "requeue")

    @precondition(lambda self: self._holders)
    @rule(pick=picks, multiple=st.booleans(), place=indexes)
    def ack(self, pick: int, multiple: bool, place: int) -> None:
        number, tag = self._held(pick, place, multiple=multiple)
        real = self.world.channels[number]
        self._on_channel(
            number,
            lambda: ack_until(real, tag) if multiple else real.ack(tag, tag),
            lambda channel: self.model.ack(channel, tag, multiple=multiple),
        )

    @precondition(lambda self: self._holders)
    @rule(pick=picks, multiple=st.booleans(), place=indexes, requeue=st.booleans())
    def reject(self, pick: int, multiple: bool, place: int, requeue: bool) -> None:
        number, tag = self._held(pick, place, multiple=multiple)
        real = self.world.channels[number]
        self._on_channel(
            number,
            lambda: (
                reject_until(real, tag, requeue=requeue)
                if multiple
                else real.reject(tag, requeue=requeue)
            ),
            lambda channel: self.model.reject(channel, tag, multiple=multiple, requeue=requeue),
        )

    @property
    def _holders(self) -> list[Channel]:
        """The channels that have anything unacked."""
        return [channel for channel in self.model.channels.values() if channel.unacked]

    def _held(self, pick: int, place: int, *, multiple: bool) -> tuple[int, int]:
        """A channel, and a delivery tag of it: seldom one that is not known there."""
        channel = self._holders[pick % len(self._holders)]
        if pick == UNKNOWN:
            return channel.number, place
        if multiple and place % 5 == 0:
            return channel.number, 0
        return channel.number, channel.unacked[place % len(channel.unacked)].tag

    @precondition(lambda self: self._holders)
    @rule(pick=picks, requeue=st.booleans())
    def recover(self, pick: int, requeue: bool) -> None:
        holder = self._holders[pick % len(self._holders)]
        number = holder.number
        self._on_channel(
            number,
            lambda: self.world.channels[number].recover(requeue=requeue),
            lambda channel: self.model.recover(channel, requeue=requeue),
        )

    # Transactions.

    def select_transactions(self, number: int) -> None:
        self._on_channel(
            number,
            lambda: self.world.channels[number].select_transactions(),
            lambda channel: self.model.select_transactions(channel),
        )

    @property
    def _transacted(self) -> list[int]:
        """The channels with transactions."""
        return [number for number, one in self.model.channels.items() if one.transaction]

    @precondition(lambda self: self._transacted)
    @rule(pick=picks)
    def commit(self, pick: int) -> None:
        number = self._transacted[pick % len(self._transacted)] if pick != UNKNOWN else 1
        self._on_channel(
            number,
            lambda: self.world.channels[number].commit(),
            lambda channel: self.model.commit(channel),
        )

    @precondition(lambda self: self._transacted)
    @rule(pick=picks)
    def rollback(self, pick: int) -> None:
        number = self._transacted[pick % len(self._transacted)] if pick != UNKNOWN else 1
        self._on_channel(
            number,
            lambda: self.world.channels[number].rollback(),
            lambda channel: self.model.rollback(channel),
        )

    # Ends.

    @rule(what=st.sampled_from(["channel", "connection", "process"]), number=channels)
    def end(self, what: str, number: int) -> None:
        if what == "channel":
            self.close_channel(number)
        elif what == "connection":
            self.close_connection(CONNECTIONS[number])
        else:
            self.restart()

    def close_channel(self, number: int) -> None:
        self._both(
            lambda: self.world.channels[number].close(),
            lambda: self.model.close_channel(self.model.channels[number]),
        )
        self._open_channel(number)

    def close_connection(self, connection: str) -> None:
        self._both(
            lambda: self.world.close_connection(connection),
            lambda: self.model.close_connection(connection),
        )
        for number, owner in CONNECTIONS.items():
            if owner == connection:
                self._open_channel(number)

    @rule(steps=st.integers(1, 6))
    def pass_time(self, steps: int) -> None:
        """Move the clock; what is due is done in time."""
        left_ms = 10 * steps - self.model.now_ms % 10
        while True:
            due_ms = self.world.services.ms_to_next_timer()
            passed_ms = left_ms if due_ms is None else min(due_ms, left_ms)
            self.world.clock.advance(passed_ms)
            self.model.now_ms += passed_ms
            left_ms -= passed_ms
            self._both(lambda: None, lambda: None)
            if not left_ms:
                return

    @rule()
    def sync(self) -> None:
        """Write a batch, after which what waited for it goes on."""
        self.is_sound = False
        durable = self.model.seal()
        self.world.store.sync()
        self.model.settled(durable)
        self._take_turns()
        self._compare()

    @rule()
    def checkpoint(self) -> None:
        self.world.store.upkeep.checkpoint()
        self.world.store.upkeep.housekeep()

    def restart(self) -> None:
        """Stop the broker cleanly, and start it."""
        for connection in set(CONNECTIONS.values()):
            self._both(
                lambda connection=connection: self.world.close_connection(connection),  # type: ignore[misc]
                lambda connection=connection: self.model.close_connection(connection),  # type: ignore[misc]
            )
        while not self.world.store.log.is_empty:
            self.sync()
        self.is_sound = False
        durable = self.model.seal()
        self.world.stop()
        self.world.open()
        self._restarted(durable)

    @rule(seed=st.none() | st.integers(0, 1 << 16))
    def cut_power(self, seed: int | None) -> None:
        """Cut the power, perhaps during a write, of which all or nothing is then there."""
        self.is_sound = False
        before, after = self.model.durable, self.model.seal()
        self.world.lose_power(seed)
        self.world.open(look=seed is not None)
        if seed is None:
            self._restarted(before)
            return
        found = self.world.recovered
        allowed = [self._as_found(before), self._as_found(after)]
        assert found in allowed, f"{found} after a crash is none of {allowed}"
        self._restarted([before, after][allowed.index(found)])

    def _as_found(self, held: dict[Queue, list[Entry]]) -> dict[str, list[tuple[bytes, int]]]:
        return {
            name: [
                (entry.letter.body, entry.deliveries)
                for entry in sorted(held.get(queue, ()), key=lambda one: -one.level)
            ]
            for name, queue in self.model.queues.items()
            if queue.survives
        }

    def _restarted(self, durable: dict[Queue, list[Entry]]) -> None:
        self.model.restart(durable)
        for number in CONNECTIONS:
            self._open_channel(number)
        self._both(lambda: None, lambda: None)

    # How both are asked, and compared.

    def _open_channels(self) -> None:
        for number in CONNECTIONS:
            self._open_channel(number)

    def _open_channel(self, number: int) -> None:
        self.world.open_channel(number, CONNECTIONS[number])
        self.model.open_channel(number, CONNECTIONS[number])

    def _on_channel(
        self,
        number: int,
        real: Callable[[], Result],
        modelled: Callable[[Channel], Result],
    ) -> None:
        """Do something on a channel; an error closes it, and another is opened in its place."""
        if self._both(real, lambda: modelled(self.model.channels[number])):
            self.close_channel(number)

    def _both(self, real: Callable[[], Result], modelled: Callable[[], Result]) -> str:
        """Do the same to both, and compare. Returns the error, if both refused it."""
        self.is_sound = False
        error = refused = ""
        answer = expected = None
        try:
            answer = real()
        except BrokerError as raised:
            error = type(raised).__name__
        try:
            expected = modelled()
        except RefusedError as raised:
            refused = str(raised)
        assert (answer, error) == (expected, refused)
        self._take_turns()
        self._compare()
        while self.is_eager and not self.world.store.log.is_empty:
            self.sync()
        return error

    def _take_turns(self) -> None:
        self.world.work()
        self.model.turn()

    def _compare(self) -> None:
        vhost = self.world.vhost
        # The model does not trace.
        declared = {name for name in vhost.exchanges if not name.startswith("amq.rabbitmq.")}
        assert declared == set(self.model.topology.exchanges)
        bound = sum(len(exchange.bindings) for exchange in vhost.exchanges.values())
        assert bound == len(self.model.topology.bindings)
        assert self.world.store.log.is_empty == (not self.model.is_logged)
        assert set(vhost.queues) == set(self.model.queues)
        held = Counter(
            one.queue.name
            for channel in self.model.channels.values()
            for one in channel.held
            if self.model.queues.get(one.queue.name) is one.queue
        )
        for name, queue in self.model.queues.items():
            self._compare_queue(vhost.queues[name], queue)
            assert vhost.queues[name].unacked_count == held[name]
        self._compare_departures()
        for number, channel in self.model.channels.items():
            self._compare_channel(number, channel)
        self.is_sound = True

    def _compare_queue(self, real: BrokerQueue, queue: Queue) -> None:
        assert real.ready_count == len(queue.ready)
        tags = [(one.channel.outlet, one.tag) for one in real.consumers.consumers]
        assert tags == [
            (self.world.outlets[one.channel.number], one.tag) for one in queue.consumers
        ]
        if "max-length-bytes" in queue.settings:
            assert real.backlog.ready_bytes == queue.ready_bytes
        if any(level.paged for level in real.priorities):
            return
        runs = [run for level in real.priorities for run in level.ready]
        found = [
            (run.messages[place].body if run.messages else None, run.delivery_count, run.expires_ms)
            for run in runs
            for place in range(run.count)
        ]
        assert found == [
            (body and entry.letter.body, entry.deliveries, entry.expires_ms)
            for (body, *_), entry in zip(found, queue.ready, strict=True)
        ]

    def _compare_departures(self) -> None:
        """Check that each message that has left did so for one reason, the right one, and that the
        others are there.
        """
        vhost = self.world.vhost
        left = self.model.left.copy()
        for name, queue in self.model.queues.items():
            real = vhost.queues[name]
            assert _by_label(reasons_of_queue(real.departures, real.counters)) == +queue.left
            left += queue.left
            gone = sum(queue.left.values()) - queue.left["publish_rejected"]
            came = real.priorities.published_count + real.departures.came_back
            kept = real.held_count + gone - came
            # The counts at the start, to which nothing is ever added.
            assert self.world.kept.setdefault(real, kept) == kept, f"{name}: {queue.left}"
        counted = _by_label(reasons_of_all(vhost.departures, vhost.counters))
        assert counted == +left

    def _compare_channel(self, number: int, channel: Channel) -> None:
        real = self.world.channels[number]
        assert self.world.outlets[number].take_answers() == channel.answers
        channel.answers.clear()
        assert [
            (tag, one.queue.name)
            for one in real._unacked
            for tag in range(one.first_sequence, one.end)
        ] == [(one.tag, one.queue.name) for one in channel.unacked]
        counted = channel.counted
        assert (real.window.unacked, real.window.unacked_bytes) == (
            len(counted),
            sum(one.entry.size for one in counted),
        )
        assert set(real.consumers) == set(channel.consumers)

    def _picked(self, pick: int) -> str:
        names = list(self.model.queues)
        return names[pick % len(names)] if names and pick != UNKNOWN else "nowhere"

    def _queue(self, name: str, number: int) -> BrokerQueue:
        queue = self.world.vhost.queue(name)
        queue.check_owner(CONNECTIONS[number])
        return queue

    def _end(self, kind: str, name: str) -> BrokerQueue | BrokerExchange:
        return self.world.vhost.queue(name) if kind == "queue" else self.world.vhost.exchange(name)


def _by_label(counts: Mapping[Departure, int]) -> dict[str, int]:
    return {reason.label: count for reason, count in counts.items() if count}
