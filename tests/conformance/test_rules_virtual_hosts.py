"""Virtual hosts, users and permissions (rules A and O of server/PROTOCOL.md)."""

import pytest

from amqpstore_server.broker.broker import Defined
from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import BasicProperties
from amqpstore_server.protocol.methods import METHODS, Method
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
from tests.fuzz.simulated import USER, Answer, SimulatedClient, SimulatedServer
from tests.fuzz.test_connection import content

PREDECLARED = ["", "amq.direct", "amq.fanout", "amq.topic", "amq.match", "amq.headers"]


def reply_code(answers: list[Answer]) -> int | None:
    for answer in answers:
        if isinstance(answer.method, (methods.ConnectionClose, methods.ChannelClose)):
            return answer.method.reply_code
    return None


def publish(client: SimulatedClient, exchange: str, key: str, body: bytes) -> list[Answer]:
    before = len(client.answers)
    method = methods.BasicPublish(exchange=exchange, routing_key=key)
    client.send(content(1, method, body, BasicProperties(), 0, 1))
    return client.answers[before:]


def get(client: SimulatedClient, queue: str) -> bytes | None:
    [answer] = client.ask(1, methods.BasicGet(queue=queue, no_ack=True))
    return answer.body if isinstance(answer.method, methods.BasicGetOk) else None


def test_virtual_hosts_share_nothing() -> None:
    """A05, C017: queues, exchanges and bindings of one name are different ones in each."""
    with SimulatedServer(("one", "two")) as server:
        one, two = (SimulatedClient.opened(server, vhost, channels=1) for vhost in ("one", "two"))
        declares = [
            methods.ExchangeDeclare(exchange="e", type="fanout"),
            methods.QueueDeclare(queue="q"),
            methods.QueueBind(queue="q", exchange="e", routing_key=""),
        ]
        assert reply_code(one.ask(1, *declares)) is None
        missing = two.ask(1, methods.QueueDeclare(queue="q", passive=True))
        assert reply_code(missing) == 404
        two.ask(1, methods.ChannelCloseOk(), methods.ChannelOpen())
        assert reply_code(two.ask(1, *declares[1:2])) is None
        publish(one, "e", "", b"through the exchange")
        publish(two, "", "q", b"of two")
        assert get(one, "q") == b"through the exchange"
        assert get(two, "q") == b"of two"
        assert get(one, "q") is get(two, "q") is None


@pytest.mark.parametrize("exchange", PREDECLARED)
def test_each_virtual_host_has_the_predeclared_exchanges(exchange: str) -> None:
    """A13, C030, C031."""
    with SimulatedServer(("one", "two")) as server:
        for vhost in ("one", "two"):
            client = SimulatedClient.opened(server, vhost, channels=1)
            if exchange:
                asked = methods.ExchangeDeclare(exchange=exchange, type="", passive=True)
                assert reply_code(client.ask(1, asked)) is None
            assert reply_code(publish(client, exchange, "nobody", b"")) is None


def test_an_exclusive_name_of_one_virtual_host_is_free_in_another() -> None:
    """C017, D07."""
    with SimulatedServer(("one", "two")) as server:
        for vhost in ("one", "two"):
            client = SimulatedClient.opened(server, vhost, channels=1)
            declared = client.ask(1, methods.QueueDeclare(queue="mine", exclusive=True))
            assert reply_code(declared) is None


def test_a_user_is_the_servers_and_its_permissions_the_virtual_hosts() -> None:
    """A08, A10, C128, C018: the same login, and what it may do differs."""
    with SimulatedServer(("one", "two", "closed")) as server:
        server.broker.define_permissions(
            USER, "two", {"configure": "^mine$", "write": "^(mine|amq\\.default)$", "read": "mine"}
        )
        one = SimulatedClient.opened(server, "one", channels=1)
        assert reply_code(one.ask(1, methods.QueueDeclare(queue="any"))) is None
        two = SimulatedClient.opened(server, "two", channels=1)
        assert reply_code(two.ask(1, methods.QueueDeclare(queue="mine"))) is None
        assert reply_code(two.ask(1, methods.QueueDeclare(queue="other"))) == 403


def test_a_virtual_host_without_permission_is_530() -> None:
    """A06, C018: a user without permissions does not get in."""
    with SimulatedServer() as server:
        server.broker.define(Defined(["nobody's"]))
        client = SimulatedClient(server)
        client.send(PROTOCOL_HEADER)
        client.ask(0, client.start_ok())
        tune_ok = methods.ConnectionTuneOk(channel_max=0, frame_max=0, heartbeat=0)
        answers = client.ask(0, tune_ok, methods.ConnectionOpen(virtual_host="nobody's"))
        assert reply_code(answers) == 530


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        (methods.QueueDeclare(queue="q"), {"configure": "^q$"}),
        (methods.QueueDelete(queue="q"), {"configure": "^q$"}),
        (methods.ExchangeDeclare(exchange="e", type="fanout"), {"configure": "^e$"}),
        (methods.ExchangeDelete(exchange="e"), {"configure": "^e$"}),
        (
            methods.QueueBind(queue="there", exchange="amq.fanout", routing_key=""),
            {"write": "^there$", "read": "^amq.fanout$"},
        ),
        (
            methods.QueueUnbind(queue="there", exchange="amq.fanout", routing_key=""),
            {"write": "^there$", "read": "^amq.fanout$"},
        ),
        (
            methods.ExchangeBind(destination="amq.topic", source="amq.fanout", routing_key=""),
            {"write": "^amq.topic$", "read": "^amq.fanout$"},
        ),
        (methods.QueuePurge(queue="there"), {"read": "^there$"}),
        (methods.BasicGet(queue="there"), {"read": "^there$"}),
        (methods.BasicConsume(queue="there", consumer_tag="t"), {"read": "^there$"}),
        (methods.QueueDeclare(queue="there", passive=True), {"write": "^there$"}),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_each_method_needs_its_permissions_and_no_more(
    method: Method, needs: dict[str, str]
) -> None:
    """O05: 403 without any one of them (the permissions of RabbitMQ)."""
    with SimulatedServer() as server:
        admin = SimulatedClient.opened(server, channels=1)
        admin.ask(1, methods.QueueDeclare(queue="there"))
        nothing = {"configure": "^$", "write": "^$", "read": "^$"}
        server.broker.define_permissions(USER, "/", {**nothing, **needs})
        client = SimulatedClient.opened(server, channels=1)
        assert reply_code(client.ask(1, method)) is None
        for left_out in needs:
            fewer = {**nothing, **needs, left_out: "^$"}
            server.broker.define_permissions(USER, "/", fewer)
            client = SimulatedClient.opened(server, channels=1)
            assert reply_code(client.ask(1, method)) == 403, left_out
        server.broker.define_permissions(USER, "/", ALL)


@pytest.mark.parametrize(
    ("exchange", "resource"), [("amq.topic", "amq.topic"), ("", "amq.default")]
)
def test_publishing_needs_write_on_the_exchange(exchange: str, resource: str) -> None:
    """O05, C03."""
    with SimulatedServer() as server:
        row = {"configure": "^$", "write": f"^{resource}$", "read": "^$"}
        server.broker.define_permissions(USER, "/", row)
        client = SimulatedClient.opened(server, channels=1)
        assert reply_code(publish(client, exchange, "key", b"")) is None
        assert reply_code(publish(client, "amq.direct", "key", b"")) == 403


NOTHING = {"configure": "^$", "write": "^$", "read": "^$"}


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare(queue="q"),
        methods.QueueDeclare(queue="there", passive=True),
        methods.QueueDelete(queue="there"),
        methods.QueuePurge(queue="there"),
        methods.QueueBind(queue="there", exchange="amq.fanout", routing_key=""),
        methods.ExchangeDeclare(exchange="e", type="fanout"),
        methods.BasicGet(queue="there"),
        methods.BasicConsume(queue="there", consumer_tag="t"),
    ],
    ids=lambda value: value.name,
)
@pytest.mark.parametrize("is_new_channel", [False, True])
def test_permissions_that_are_taken_away_are_missed_at_the_next_method(
    method: Method, is_new_channel: bool
) -> None:
    """O05: also on a connection that is open, and on a channel that has used them."""
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        client.ask(1, methods.QueueDeclare(queue="there"), method)
        server.broker.define_permissions(USER, "/", NOTHING)
        if is_new_channel:
            client.ask(2, methods.ChannelOpen())
        assert reply_code(client.ask(1 + is_new_channel, method)) == 403


def test_a_publish_needs_the_permission_of_now() -> None:
    """O05: what was granted a moment ago is not remembered; nor what was refused."""
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        assert reply_code(publish(client, "amq.fanout", "key", b"")) is None
        server.broker.define_permissions(USER, "/", NOTHING)
        assert reply_code(publish(client, "amq.fanout", "key", b"")) == 403
        client.ask(1, methods.ChannelCloseOk(), methods.ChannelOpen())
        server.broker.define_permissions(USER, "/", ALL)
        assert reply_code(publish(client, "amq.fanout", "key", b"")) is None


def test_a_routing_key_needs_the_topic_permission_of_now() -> None:
    """O05: a limit that is set later holds for open connections too."""
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        assert reply_code(publish(client, "amq.topic", "adm.secret", b"")) is None
        limited = {**ALL, "topic": {"amq.topic": {"write": "^{username}\\.", "read": "^$"}}}
        server.broker.define_permissions(USER, "/", limited)
        assert reply_code(publish(client, "amq.topic", "guest.news", b"")) is None
        assert reply_code(publish(client, "amq.topic", "adm.secret", b"")) == 403


def test_a_consumer_ends_with_the_permission_to_read() -> None:
    """O05: the client is told with basic.cancel, and gets nothing more; others go on."""
    with SimulatedServer() as server:
        publisher = SimulatedClient.opened(server, channels=1)
        consumer = SimulatedClient.opened(server, channels=1)
        for queue in ("kept", "lost"):
            publisher.ask(1, methods.QueueDeclare(queue=queue))
            consumer.ask(1, methods.BasicConsume(queue=queue, consumer_tag=queue, no_ack=True))
        consumer.answers.clear()
        server.broker.define_permissions(USER, "/", {**ALL, "read": "^kept$"})
        server.settle()
        [cancelled] = consumer.answers
        assert cancelled.method == methods.BasicCancel(consumer_tag="lost", no_wait=True)
        for queue in ("kept", "lost"):
            publish(publisher, "", queue, queue.encode())
        assert [answer.body for answer in consumer.answers[1:]] == [b"kept"]
        server.broker.define_permissions(USER, "/", ALL)
        assert get(publisher, "lost") == b"lost"


def test_a_get_that_waits_ends_with_the_permission_to_read() -> None:
    """O05: it is answered with get-empty, and what is behind it has its turn."""
    with SimulatedServer() as server:
        publisher = SimulatedClient.opened(server, channels=1)
        waiting = SimulatedClient.opened(server, channels=1)
        for queue in ("kept", "lost"):
            publisher.ask(1, methods.QueueDeclare(queue=queue))
        waiting.ask(
            1,
            *(
                methods.BasicGet(queue=queue, no_ack=True, arguments={"x-wait": 60_000})
                for queue in ("lost", "kept", "lost")
            ),
        )
        assert not waiting.answers
        server.broker.define_permissions(USER, "/", {**ALL, "read": "^kept$"})
        server.settle()
        assert [type(answer.method) for answer in waiting.answers] == [methods.BasicGetEmpty]
        for queue in ("lost", "kept"):
            publish(publisher, "", queue, queue.encode())
        answered = [(type(answer.method), answer.body) for answer in waiting.answers[1:]]
        assert answered == [(methods.BasicGetOk, b"kept"), (methods.BasicGetEmpty, b"")]


def test_permissions_of_connections_that_ended_are_nobodys() -> None:
    """O05: nothing of a closed connection is looked at, or kept."""
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        access = server.broker.access(USER, "/")
        assert access.on_change
        client.lose()
        assert not access.on_change


def test_no_method_makes_a_virtual_host_or_moves_to_another() -> None:
    """A07, B08: the only one that names one opens the connection, once."""
    naming = [
        method.name
        for method in METHODS.values()
        if any(argument.name == "virtual_host" for argument in method.layout.arguments)
    ]
    assert naming == ["connection.open"]
