"""Permissions and virtual hosts change under traffic: no user keeps a right that was revoked."""

import itertools
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from amqpstore_server.administration.changes import AdministrationError
from amqpstore_server.administration.definitions import Permission, VirtualHostDefinition
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.work import Work, done
from amqpstore_server.broker.broker import Broker
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.rights.permissions import ALL, Access
from amqpstore_server.logins.users import Users
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import BasicProperties
from tests.fuzz.simulated import USER, SimulatedClient, SimulatedServer
from tests.fuzz.test_connection import content

BY = By("test", "test")
VHOSTS = ("a", "b")
QUEUES = ("q1", "q2")
PATTERNS = {"": (), "^q1$": ("q1",), "^q2$": ("q2",), ".*": QUEUES}
"""Each with the queues that it matches."""

vhosts = st.sampled_from(VHOSTS)
queues = st.sampled_from(QUEUES)
patterns = st.sampled_from(sorted(PATTERNS))


class Revocation(RuleBasedStateMachine):
    """One client per virtual host, and an operator; `allowed` is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.server = SimulatedServer(("/", *VHOSTS))
        self.users = Users(self.server.store)
        self.users.define(USER, self.users.imported(b"", "rabbit_password_hashing_sha256"))
        self.make_administration()
        self.allowed: dict[str, dict[str, str] | None] = {vhost: dict(ALL) for vhost in VHOSTS}
        self.clients: dict[str, SimulatedClient] = {}
        self.consumed: dict[str, dict[str, str]] = {vhost: {} for vhost in VHOSTS}
        self.declared: dict[str, set[str]] = {vhost: set() for vhost in VHOSTS}
        self.tags = itertools.count()

    def make_administration(self) -> None:
        server = self.server
        self.administration = Administration(
            server.broker,
            self.users,
            lambda: [client.connection for client in server.clients],
            lambda: server.now_s,
        )

    def teardown(self) -> None:
        self.server.store.abandon()

    def do(self, work: Work[None]) -> None:
        done(work)
        self.server.settle()

    # The operator.

    @rule(vhost=vhosts, configure=patterns, write=patterns, read=patterns)
    def set(self, vhost: str, configure: str, write: str, read: str) -> None:
        if vhost not in self.server.broker.vhosts:
            return
        row = {"configure": configure, "write": write, "read": read}
        asked = Permission(user=USER, vhost=vhost, **row)
        self.do(self.administration.permissions.set(BY, asked))
        self.allowed[vhost] = row
        self.forget_unreadable(vhost, read)

    @rule(vhost=vhosts)
    def clear(self, vhost: str) -> None:
        if self.allowed[vhost] is not None:
            self.do(self.administration.permissions.clear(BY, USER, vhost))
            self.allowed[vhost] = None
            self.forget_unreadable(vhost, "")

    @rule(vhost=vhosts)
    def delete(self, vhost: str) -> None:
        if vhost in self.server.broker.vhosts:
            self.do(self.administration.delete_vhost(BY, vhost))
            self.allowed[vhost] = None
            self.consumed[vhost] = {}
            self.declared[vhost] = set()
            if client := self.clients.pop(vhost, None):
                assert isinstance(client.answers[-1].method, methods.ConnectionClose)
                client.lose()

    @rule(vhost=vhosts)
    def add(self, vhost: str) -> None:
        if vhost not in self.server.broker.vhosts:
            self.do(self.administration.add_vhost(BY, VirtualHostDefinition(name=vhost), USER))
            self.allowed[vhost] = dict(ALL)
            assert not self.server.broker.vhosts[vhost].queues

    def forget_unreadable(self, vhost: str, read: str) -> None:
        kept = self.consumed[vhost]
        self.consumed[vhost] = {tag: one for tag, one in kept.items() if one in PATTERNS[read]}

    @precondition(lambda self: not self.clients)
    @rule()
    def restart(self) -> None:
        self.server.restart()
        self.users = Users(self.server.store)
        self.make_administration()

    # The clients.

    @rule(vhost=vhosts)
    def connect(self, vhost: str) -> None:
        if vhost not in self.clients:
            client = SimulatedClient.opened(self.server, vhost)
            is_open = client.connection.vhost == vhost
            assert is_open == (self.allowed[vhost] is not None)
            if is_open:
                self.clients[vhost] = client
            else:
                client.lose()

    @rule(vhost=vhosts)
    def disconnect(self, vhost: str) -> None:
        if client := self.clients.pop(vhost, None):
            client.lose()
            self.consumed[vhost] = {}

    @rule(vhost=vhosts, queue=queues)
    def declare(self, vhost: str, queue: str) -> None:
        asked = methods.QueueDeclare(queue=queue, durable=True)
        if self.ask(vhost, "configure", queue, asked) == 0:
            self.declared[vhost].add(queue)

    @rule(vhost=vhosts, queue=queues)
    def consume(self, vhost: str, queue: str) -> None:
        tag = f"c{next(self.tags)}"
        consume = methods.BasicConsume(queue=queue, consumer_tag=tag, no_ack=True)
        if self.ask(vhost, "read", queue, consume, keeps=True) == 0:
            self.consumed[vhost][tag] = queue

    @rule(vhost=vhosts, queue=queues)
    def publish(self, vhost: str, queue: str) -> None:
        """Publish to the default exchange: only `.*` matches its name."""
        client = self.clients.get(vhost)
        allowed = self.allowed[vhost]
        if client is None:
            return
        client.ask(1, methods.ChannelOpen())
        before = len(client.answers)
        method = methods.BasicPublish(exchange="", routing_key=queue)
        client.send(content(1, method, b"x", BasicProperties(), 0, 1))
        received = [answer.method for answer in client.answers[before:]]
        readers = set(self.consumed[vhost].values())
        if allowed is None or allowed["write"] != ".*":
            closes = [one for one in received if isinstance(one, methods.ChannelClose)]
            assert [close.reply_code for close in closes] == [403]
            client.ask(1, methods.ChannelCloseOk())
            return
        # No client gets messages of a queue that it may not read any more.
        assert len(received) == (queue in readers)
        for delivery in received:
            assert isinstance(delivery, methods.BasicDeliver)
            assert self.consumed[vhost][delivery.consumer_tag] == queue
        self.close(client, 1)

    def ask(
        self, vhost: str, permission: str, queue: str, method: methods.Method, keeps: bool = False
    ) -> int:
        """Send a method on a channel of its own; the reply code, 0 if it was not refused."""
        client = self.clients.get(vhost)
        if client is None:
            return -1
        channel = 2 + next(self.tags)
        client.ask(channel, methods.ChannelOpen())
        answers = [answer.method for answer in client.ask(channel, method)]
        closes = [one for one in answers if isinstance(one, methods.ChannelClose)]
        allowed = self.allowed[vhost]
        is_allowed = allowed is not None and queue in PATTERNS[allowed[permission]]
        code = closes[0].reply_code if closes else 0
        assert (code == 403) != is_allowed
        assert code in (0, 403, 404)
        if closes:
            client.ask(channel, methods.ChannelCloseOk())
        elif not keeps:
            self.close(client, channel)
        return code

    @staticmethod
    def close(client: SimulatedClient, channel: int) -> None:
        close = methods.ChannelClose(
            reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0
        )
        client.ask(channel, close)

    @invariant()
    def consumers_are_those_that_may_read(self) -> None:
        for name in VHOSTS:
            vhost = self.server.broker.vhosts.get(name)
            found = {
                queue.name: len(queue.consumers)
                for queue in (vhost.queues.values() if vhost else ())
                if queue.consumers
            }
            assert found == Counter(self.consumed[name].values())

    @invariant()
    def a_deleted_vhost_has_no_queue(self) -> None:
        for name, vhost in self.server.broker.vhosts.items():
            assert vhost.queues.keys() == self.declared.get(name, set())

    @invariant()
    def the_store_has_what_was_set(self) -> None:
        found = {
            vhost: {kind: row[kind] for kind in ALL}
            for _, vhost, row in self.server.broker.granted()
            if vhost in VHOSTS
        }
        assert found == {vhost: row for vhost, row in self.allowed.items() if row is not None}


TestRevocation = Revocation.TestCase
TestRevocation.settings = settings(max_examples=30, stateful_step_count=30)


@pytest.mark.parametrize(("owner", "name"), [(Access, "change"), (Broker, "deleting_vhost")])
def test_a_broker_that_forgets_to_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.setattr(owner, name, lambda *_: iter(()))
    # Not made smaller: that it fails is enough.
    quick = settings(phases=[Phase.generate], max_examples=1000, stateful_step_count=30)
    with pytest.raises((AssertionError, AdministrationError, ExceptionGroup)):
        run_state_machine_as_test(Revocation, settings=quick)
