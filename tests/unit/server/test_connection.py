"""A connection without its socket: what a client reads, in which order, and what is left of it."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from amqpstore.format.limits import StoreLimits
from amqpstore_server.broker.exchanges.topic import TopicExchange
from amqpstore_server.broker.rules.settings import Settings
from amqpstore_server.clients.connection import HANDSHAKE_S, LOGIN_CHECK_S
from amqpstore_server.clients.limits import Limits
from amqpstore_server.clients.login import CheckedLogin
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import REPLY_TO, BasicProperties, decode_properties
from amqpstore_server.protocol.frames import method_frame
from amqpstore_server.protocol.methods import Method
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
from tests.fuzz.simulated import Answer, SimulatedClient, SimulatedServer
from tests.fuzz.test_connection import content
from tests.simulated_broker import OPTIONS

HEARTBEAT_S = 10
CHANNEL_CLOSE = methods.ChannelClose(
    reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0
)
CONNECTION_CLOSE = methods.ConnectionClose(
    reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0
)


@pytest.fixture
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer() as server:
        yield server


@pytest.fixture
def client(server: SimulatedServer) -> SimulatedClient:
    client = SimulatedClient.opened(server, channels=2)
    client.ask(1, methods.QueueDeclare(queue="q", durable=True))
    return client


def sent(method: Method, channel: int = 1) -> bytes:
    return method_frame(channel, method.encode())


def published(
    body: bytes, *, channel: int = 1, exchange: str = "", key: str = "q", **properties: Any
) -> bytes:
    method = methods.BasicPublish(exchange=exchange, routing_key=key)
    fields = BasicProperties(**{"delivery_mode": 2, **properties})
    return content(channel, method, body, fields, 0, 1)


def qos(count: int) -> Method:
    """Return how many messages a channel may have unacked."""
    return methods.BasicQos(prefetch_size=0, prefetch_count=count, global_=True)


def test_a_check_of_a_login_may_take_its_time(server: SimulatedServer) -> None:
    """A check is slow while other programs need the processor, but a valid login gets in."""
    client = SimulatedClient(server)
    connection = client.connection
    now = server.now_s
    connection.receive(PROTOCOL_HEADER, now)
    connection.receive(sent(client.start_ok(), channel=0), now)
    connection.tick(now + HANDSHAKE_S + LOGIN_CHECK_S - 1)
    assert connection.is_authenticating
    now += HANDSHAKE_S + LOGIN_CHECK_S - 1
    connection.logged_in(CheckedLogin(granted=True), now)
    connection.tick(now + HANDSHAKE_S - 1)
    assert not connection.is_finished
    connection.tick(now + HANDSHAKE_S)
    assert connection.is_finished, "the rest of the handshake has its own time"


def test_a_check_of_a_login_does_not_take_for_ever(server: SimulatedServer) -> None:
    client = SimulatedClient(server)
    now = server.now_s
    client.connection.receive(PROTOCOL_HEADER, now)
    client.connection.receive(sent(client.start_ok(), channel=0), now)
    client.connection.tick(now + HANDSHAKE_S + LOGIN_CHECK_S)
    assert client.connection.is_finished


LOGIN = b"\5LOGINS\0\0\0\5guest"
PASSWORD = b"\x08PASSWORDS\0\0\0\5guest"


@pytest.mark.parametrize(
    ("mechanism", "response", "said"),
    [
        ("AMQPLAIN", LOGIN + PASSWORD, ""),
        ("AMQPLAIN", b"\1Xt\1" + PASSWORD + LOGIN, ""),
        ("AMQPLAIN", LOGIN, "the client sent a malformed login"),
        ("AMQPLAIN", b"\0\0\0\x20" + LOGIN + PASSWORD, "the client sent a malformed login"),
        ("PLAIN", b"guest\0guest", "the client sent a malformed login"),
        ("EXTERNAL", b"", "the client chose a login mechanism that was not offered"),
    ],
)
def test_why_a_login_cannot_be_read_is_logged(
    server: SimulatedServer,
    caplog: pytest.LogCaptureFixture,
    mechanism: str,
    response: bytes,
    said: str,
) -> None:
    client = SimulatedClient(server)
    client.send(b"AMQP\0\0\x09\x01")
    client.send(
        sent(dataclasses.replace(client.start_ok(), mechanism=mechanism, response=response), 0)
    )
    assert client.connection.is_finished == bool(said)
    lines = [one.getMessage() for one in caplog.records if "mechanism" in vars(one)]
    assert [one for one in lines if one != "login"] == ([said] if said else [])


def names(answers: list[Answer]) -> list[str]:
    return [answer.method.name for answer in answers]


# What is left of a connection.


def closes(client: SimulatedClient) -> None:
    client.ask(0, CONNECTION_CLOSE)


def lost(client: SimulatedClient) -> None:
    client.lose()


def silent(client: SimulatedClient) -> None:
    client.server.pass_time(3 * HEARTBEAT_S * 1000)


def at_fault(client: SimulatedClient) -> None:
    assert names(client.ask(0, qos(1))) == ["connection.close"]


@pytest.mark.parametrize("end", [closes, lost, silent, at_fault])
def test_the_exclusive_queues_and_deliveries_of_a_connection_go_however_it_ends(
    server: SimulatedServer, client: SimulatedClient, end: Callable[[SimulatedClient], None]
) -> None:
    owner = SimulatedClient.opened(server, channels=1, heartbeat_s=HEARTBEAT_S)
    owner.ask(1, methods.QueueDeclare(queue="own", exclusive=True))
    client.send(published(b"m"))
    owner.ask(1, methods.BasicConsume(queue="q", consumer_tag="t"))
    end(owner)
    [got] = client.ask(1, methods.BasicGet(queue="q"))
    assert isinstance(got.method, methods.BasicGetOk)
    assert (got.body, got.method.redelivered) == (b"m", True)
    [missing] = client.ask(1, methods.QueueDeclare(queue="own", passive=True))
    assert isinstance(missing.method, methods.ChannelClose)
    assert missing.method.reply_code == 404


# Confirms, and the end of their channel.


@pytest.mark.parametrize("mode", [1, 2])
def test_what_was_published_before_a_fault_is_confirmed_before_the_channel_is_closed(
    client: SimulatedClient, mode: int
) -> None:
    client.ask(1, methods.ConfirmSelect())
    before = len(client.answers)
    client.send(published(b"m", delivery_mode=mode) + published(b"x", exchange="missing"))
    assert names(client.answers[before:]) == ["basic.ack", "channel.close"]


def test_what_was_published_before_a_close_is_confirmed_before_it_is_answered(
    client: SimulatedClient,
) -> None:
    client.ask(1, methods.ConfirmSelect())
    before = len(client.answers)
    client.send(published(b"m", delivery_mode=1) + sent(CHANNEL_CLOSE))
    assert names(client.answers[before:]) == ["basic.ack", "channel.close-ok"]


def test_who_publishes_and_closes_the_channel_at_once_has_published(
    client: SimulatedClient,
) -> None:
    """Such a client has to wait as others do while the disk is nearly full."""
    assert not client.connection.input.has_published
    client.send(published(b"m") + sent(CHANNEL_CLOSE))
    assert client.connection.input.has_published


def test_a_confirm_goes_to_the_channel_that_published(client: SimulatedClient) -> None:
    client.ask(1, methods.ConfirmSelect())
    client.ask(2, methods.ConfirmSelect())
    before = len(client.answers)
    client.send(published(b"m"))
    assert [(one.channel, one.method.name) for one in client.answers[before:]] == [(1, "basic.ack")]


# What was given back.


def test_a_get_says_whether_it_was_delivered_before_and_how_many_are_left(
    client: SimulatedClient,
) -> None:
    client.send(published(b"a") + published(b"b"))
    said = []
    for tag in (1, 2):
        [got] = client.ask(1, methods.BasicGet(queue="q"))
        assert isinstance(got.method, methods.BasicGetOk)
        said.append((got.body, got.method.redelivered, got.method.message_count))
        client.ask(1, methods.BasicNack(delivery_tag=tag, requeue=True))
    assert said == [(b"a", False, 1), (b"a", True, 1)]


@pytest.mark.parametrize("tag", [0, 3])
def test_a_nack_of_all_gives_all_back(client: SimulatedClient, tag: int) -> None:
    client.send(published(b"a") + published(b"b") + published(b"c"))
    for _ in range(3):
        client.ask(1, methods.BasicGet(queue="q"))
    client.ask(1, methods.BasicNack(delivery_tag=tag, multiple=True, requeue=True))
    [declared] = client.ask(1, methods.QueueDeclare(queue="q", passive=True))
    assert isinstance(declared.method, methods.QueueDeclareOk)
    assert declared.method.message_count == 3


@pytest.mark.parametrize("limit", [0, 3])
def test_a_limit_of_the_channel_that_is_raised_lets_go_on_at_once(
    client: SimulatedClient, limit: int
) -> None:
    client.send(published(b"a") + published(b"b") + published(b"c"))
    client.ask(1, qos(1))
    assert names(client.ask(1, methods.BasicConsume(queue="q", consumer_tag="t"))) == [
        "basic.consume-ok",
        "basic.deliver",
    ]
    raised = client.ask(1, qos(limit))
    assert names(raised) == ["basic.qos-ok", "basic.deliver", "basic.deliver"]


# What was published in one read.


@pytest.mark.parametrize("restarts", [False, True])
def test_each_delivery_has_its_own_exchange_and_key(
    server: SimulatedServer, client: SimulatedClient, restarts: bool
) -> None:
    for exchange in ("amq.fanout", "amq.topic"):
        client.ask(1, methods.QueueBind(queue="q", exchange=exchange, routing_key="#"))
    sent_to = [("amq.fanout", "a"), ("amq.fanout", "b"), ("amq.topic", "b"), ("", "q")]
    client.send(b"".join(published(b"m", exchange=one, key=key) for one, key in sent_to))
    if restarts:  # they are read from the disk then, in one go
        client.lose()
        server.restart()
        client = SimulatedClient.opened(server, channels=1)
    answers = client.ask(1, methods.BasicConsume(queue="q", consumer_tag="t", no_ack=True))
    delivered = [one.method for one in answers if isinstance(one.method, methods.BasicDeliver)]
    assert [(one.exchange, one.routing_key) for one in delivered] == sent_to


def test_each_message_expires_at_its_own_time(
    server: SimulatedServer, client: SimulatedClient
) -> None:
    client.send(b"".join(published(ms.encode(), expiration=ms) for ms in ("30", "10", "20")))
    left = []
    for _ in range(3):
        server.pass_time(10)
        [declared] = client.ask(1, methods.QueueDeclare(queue="q", passive=True))
        assert isinstance(declared.method, methods.QueueDeclareOk)
        left.append(declared.method.message_count)
    assert left == [2, 1, 0]


def test_replies_come_back_on_the_channel_that_asked(client: SimulatedClient) -> None:
    replies = methods.BasicConsume(queue=REPLY_TO, consumer_tag="t", no_ack=True)
    for channel in (1, 2):
        client.ask(channel, replies)
        client.send(published(b"ask", channel=channel, reply_to=REPLY_TO))
    for channel in (1, 2):
        [asked] = client.ask(1, methods.BasicGet(queue="q", no_ack=True))
        assert asked.header is not None
        address = decode_properties(asked.header.properties).reply_to
        assert address is not None
        before = len(client.answers)
        client.send(published(b"answer", key=address))
        [answer] = client.answers[before:]
        assert (answer.channel, answer.body) == (channel, b"answer")


@pytest.mark.parametrize("end", [methods.TxCommit(), methods.TxRollback()])
def test_only_what_is_not_committed_counts_as_unfinished(end: Method) -> None:
    with SimulatedServer(
        limits=Limits(max_message_bytes=100_000, unfinished_bytes=5_000)
    ) as server:
        client = SimulatedClient.opened(server, channels=1)
        client.ask(1, methods.QueueDeclare(queue="q"), methods.TxSelect())
        for _ in range(10):
            client.send(published(bytes(1_000)))
            assert names(client.ask(1, end)) == [f"{end.name}-ok"]
        for _ in range(10):
            client.send(published(bytes(1_000)))
        assert client.answers[-1].method.name == "connection.close"


@pytest.mark.parametrize("asked", [None, 0, 3, 4])
def test_no_consumer_has_more_unacked_than_it_may(asked: int | None) -> None:
    with SimulatedServer(limits=Limits(prefetch=3)) as server:
        client = SimulatedClient.opened(server, channels=1)
        client.ask(1, methods.QueueDeclare(queue="q"))
        if asked is not None:
            client.ask(1, methods.BasicQos(prefetch_size=0, prefetch_count=asked))
        client.ask(1, methods.BasicConsume(queue="q", consumer_tag=""))
        client.send(b"".join(published(b"%d" % n) for n in range(5)))
        assert server.ready("q") == ["3", "4"]
        client.ask(1, methods.BasicQos(prefetch_size=0, prefetch_count=1))
        client.ask(1, methods.BasicConsume(queue="q", consumer_tag=""))
        assert server.ready("q") == ["4"]
        client.send(sent(methods.BasicAck(delivery_tag=2)))
        assert server.ready("q") == []


def test_a_channel_gets_no_more_than_it_may_have_unacked() -> None:
    with SimulatedServer(limits=Limits(prefetch=3)) as server:
        client = SimulatedClient.opened(server, channels=1)
        client.ask(1, methods.QueueDeclare(queue="q"))
        client.send(published(b"m") * 7)
        get, last = methods.BasicGet(queue="q"), methods.BasicAck(delivery_tag=3)
        assert names(client.ask(1, get, get, get)) == ["basic.get-ok"] * 3
        assert names(client.ask(1, last, get)) == ["basic.get-ok"]
        no_ack = methods.BasicGet(queue="q", no_ack=True)
        assert names(client.ask(1, no_ack)) == ["basic.get-ok"]
        [answer] = client.ask(1, get)
        assert isinstance(answer.method, methods.ChannelClose)
        assert answer.method.reply_code == 406
        assert "3 unacked messages" in answer.method.reply_text
        assert len(server.ready("q")) == 5


def test_a_consumer_without_a_limit_takes_all_of_a_read_for_a_queue_that_keeps_nothing() -> None:
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        client.ask(
            1,
            methods.QueueDeclare(
                queue="q", arguments={"x-max-length": 0, "x-overflow": "reject-publish"}
            ),
        )
        client.ask(1, methods.BasicConsume(queue="q", consumer_tag=""))
        client.send(published(b"m") * 3000)
        assert names(client.answers).count("basic.deliver") == 3000


# What takes long.


def test_many_methods_of_one_write_leave_others_their_turn(
    server: SimulatedServer, client: SimulatedClient
) -> None:
    """Each part of them is synced: 5,000 declares would hold up all clients for seconds."""
    other = SimulatedClient.opened(server, channels=1)
    other.ask(1, methods.ConfirmSelect())
    queues = [f"q{number}" for number in range(200)]
    declares = [sent(methods.QueueDeclare(queue=name, durable=True)) for name in queues]
    client.connection.receive(b"".join(declares) + published(b"last", key="q199"), server.now_s)
    assert len(server.vhost.queues) < 100
    assert client.connection.is_input_paused
    other.connection.receive(published(b"between"), server.now_s)
    server.work()
    server.write_batch()()
    other.take_output()
    assert names(other.answers) == ["confirm.select-ok", "basic.ack"]
    assert len(server.vhost.queues) < 100
    server.settle()
    declared = [answer.method for answer in client.answers[1:]]
    assert [one.queue for one in declared if isinstance(one, methods.QueueDeclareOk)] == queues
    assert server.vhost.queue("q199").ready_count == 1
    assert not client.connection.is_input_paused


def test_a_client_that_is_gone_in_the_middle_of_its_methods_leaves_nothing_waiting(
    server: SimulatedServer, client: SimulatedClient
) -> None:
    declares = [sent(methods.QueueDeclare(queue=f"q{number}")) for number in range(200)]
    client.connection.receive(b"".join(declares), server.now_s)
    client.lose()
    assert len(server.vhost.queues) < 100
    assert not client.connection.is_input_paused


def test_publishes_that_go_to_many_queues_each_leave_others_their_turn(
    server: SimulatedServer, client: SimulatedClient
) -> None:
    declares = [methods.QueueDeclare(queue=f"q{n}", durable=True) for n in range(300)]
    binds = [
        methods.QueueBind(queue=f"q{n}", exchange="amq.fanout", routing_key="") for n in range(300)
    ]
    client.ask(1, *declares, *binds, methods.ConfirmSelect())
    client.answers.clear()
    # With a length limit none of them is simple; the keys differ, so each is placed by itself.
    server.vhost.queue("q7").apply(Settings(max_length=4))
    read = b"".join(
        published(b"%d" % n, exchange="amq.fanout", key=f"key {n}", expiration="100000")
        for n in range(6)
    )
    client.connection.receive(read + published(b"6"), server.now_s)
    ready = server.vhost.queue("q9")
    assert 0 < ready.ready_count < 6
    assert client.connection.is_input_paused
    server.settle()
    assert server.ready("q9") == list("012345")
    assert server.ready("q7") == list("2345")
    assert server.ready("q") == ["6"]
    confirms = [one.method for one in client.answers]
    tags = [one.delivery_tag for one in confirms if isinstance(one, methods.BasicAck)]
    assert tags == sorted(set(tags))
    assert tags[-1] == 7


def test_a_replay_leaves_others_their_turn_and_keeps_its_channel_waiting(
    server: SimulatedServer, client: SimulatedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpstore.queues.stored_runs._MAX_BROWSED", 1)
    queue = methods.QueueDeclare(queue="kept", durable=True, arguments={"x-history-length": 100})
    client.ask(1, queue, methods.ConfirmSelect())
    client.send(published(b"one", key="kept") + published(b"two", key="kept"))
    client.ask(1, methods.BasicGet(queue="kept"), methods.BasicGet(queue="kept"))
    client.ask(1, methods.BasicAck(delivery_tag=0, multiple=True))
    client.answers.clear()
    replay = published(b"", exchange="amq.replay", key="kept")
    client.connection.receive(published(b"0") + replay + published(b"3", key="kept"), server.now_s)
    assert client.connection.is_input_paused
    other = SimulatedClient.opened(server, channels=1)
    other.send(published(b"between", key="kept"))
    server.settle()
    assert server.ready("kept") in (
        ["between", "one", "two", "3"],
        ["one", "two", "3", "between"],
        ["one", "two", "between", "3"],
    )
    tags = [answer.method for answer in client.answers]
    assert [one.delivery_tag for one in tags if isinstance(one, methods.BasicAck)][-1] == 5


def test_a_replay_right_behind_acks_has_what_was_acked(
    server: SimulatedServer, client: SimulatedClient
) -> None:
    """Acked messages enter the history in later turns, and are there once that is durable."""
    kept = methods.QueueDeclare(queue="kept", durable=True, arguments={"x-history-length": 500})
    count = methods.QueueDeclare(queue="amq.consumed.kept", passive=True)
    bodies = [b"%d" % number for number in range(300)]
    client.ask(1, kept, methods.ConfirmSelect())
    client.send(b"".join(published(one, key="kept", message_id=one.decode()) for one in bodies))
    for _ in bodies:
        client.ask(1, methods.BasicGet(queue="kept"))
    client.answers.clear()
    acks = sent(methods.BasicAck(delivery_tag=0, multiple=True))
    replay = published(b"", exchange="amq.replay", key="kept")
    client.connection.receive(acks + sent(count) + replay + sent(count), server.now_s)
    server.settle()
    counts = [answer.method for answer in client.answers]
    assert [one.message_count for one in counts if isinstance(one, methods.QueueDeclareOk)] == [
        300,
        300,
    ]
    assert server.ready("kept") == [one.decode() for one in bodies]


def test_another_channel_counts_and_purges_what_was_acked_before(
    server: SimulatedServer, client: SimulatedClient
) -> None:
    kept = methods.QueueDeclare(queue="kept", durable=True, arguments={"x-history-length": 500})
    client.ask(1, kept)
    client.send(published(b"one", key="kept") + published(b"two", key="kept"))
    client.ask(1, methods.BasicGet(queue="kept"), methods.BasicGet(queue="kept"))
    other = SimulatedClient.opened(server, channels=1)
    client.connection.receive(sent(methods.BasicAck(delivery_tag=1)), server.now_s)
    client.connection.receive(sent(methods.BasicAck(delivery_tag=2)), server.now_s)
    other.connection.receive(sent(methods.QueuePurge(queue="amq.consumed.kept")), server.now_s)
    server.settle()
    (purged,) = [answer.method for answer in other.answers]
    assert isinstance(purged, methods.QueuePurgeOk)
    assert purged.message_count == 2
    assert server.ready("amq.consumed.kept") == []


LARGE = bytes(12_000)
SMALL_CHUNKS = StoreLimits(table_step_bytes=500, read_ahead_bytes=1000, read_chunk_bytes=1000)


@pytest.fixture
def reading() -> Iterator[SimulatedServer]:
    """Queue "q" with a large message that is on disk only, and a small one behind it."""
    options = OPTIONS._replace(memory_bytes=0, limits=SMALL_CHUNKS)
    with SimulatedServer(options=options) as server:
        client = SimulatedClient.opened(server, channels=1)
        client.ask(1, methods.QueueDeclare(queue="q", durable=True))
        client.send(published(LARGE) + published(b"after"))
        client.lose()
        server.store.upkeep.housekeep()
        yield server


def test_a_get_of_a_large_message_leaves_others_their_turn_and_keeps_its_channel_waiting(
    reading: SimulatedServer,
) -> None:
    client = SimulatedClient.opened(reading, channels=1)
    other = SimulatedClient.opened(reading, channels=1)
    gets = sent(methods.BasicGet(queue="q")) * 3 + sent(methods.QueueDeclare(queue="new"))
    client.connection.receive(gets, reading.now_s)
    for _ in range(10):
        assert client.connection.is_input_paused
        reading.broker.pumping.pump()
        client.go_on()
        assert not client.answers
        # One step of a get that takes as many: the other client is not held up by it.
        other.connection.receive(sent(methods.QueueDeclare(queue="other")), reading.now_s)
        other.take_output()
        assert names(other.answers[-1:]) == ["queue.declare-ok"]
    reading.settle()
    assert [answer.body for answer in client.answers if answer.header] == [LARGE, b"after"]
    assert names(client.answers) == [
        *["basic.get-ok", "basic.get-ok", "basic.get-empty", "queue.declare-ok"]
    ]


def test_a_get_of_a_large_message_whose_queue_is_deleted_meanwhile_closes_its_channel(
    reading: SimulatedServer,
) -> None:
    client = SimulatedClient.opened(reading, channels=1)
    client.connection.receive(sent(methods.BasicGet(queue="q")), reading.now_s)
    reading.vhost.delete_queue(reading.vhost.queue("q"))
    reading.settle()
    (closed,) = client.answers
    assert isinstance(closed.method, methods.ChannelClose)
    assert closed.method.reply_code == 404


def test_a_client_that_is_gone_in_the_middle_of_a_get_leaves_the_message(
    reading: SimulatedServer,
) -> None:
    client = SimulatedClient.opened(reading, channels=1)
    client.connection.receive(sent(methods.BasicGet(queue="q")), reading.now_s)
    client.lose()
    reading.settle()
    assert reading.vhost.queue("q").ready_count == 2


def test_an_impossible_replay_closes_its_channel_when_it_is_found_out(
    server: SimulatedServer, client: SimulatedClient
) -> None:
    replay = published(b"", exchange="amq.replay", key="q", headers={"x-limit": "many"})
    client.send(replay + published(b"after"))
    close = client.answers[-1].method
    assert isinstance(close, methods.ChannelClose)
    assert (close.failing_class_id, close.failing_method_id) == (60, 40)
    assert server.ready("q") == []


def test_a_client_that_is_gone_during_its_replay_leaves_nothing(
    server: SimulatedServer, client: SimulatedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqpstore.queues.stored_runs._MAX_BROWSED", 1)
    queue = methods.QueueDeclare(queue="kept", durable=True, arguments={"x-history-length": 100})
    client.ask(1, queue)
    client.send(published(b"one", key="kept") + published(b"two", key="kept"))
    client.ask(1, methods.BasicGet(queue="kept"), methods.BasicGet(queue="kept"))
    client.ask(1, methods.BasicAck(delivery_tag=0, multiple=True))
    client.connection.receive(published(b"", exchange="amq.replay", key="kept"), server.now_s)
    client.lose()
    server.settle()
    assert server.ready("kept") == []
    assert not client.connection.is_input_paused


def test_a_message_of_many_routing_keys_leaves_others_their_turns(
    server: SimulatedServer, client: SimulatedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.exchange("e", "topic")
    server.bind("e", "q", "39")
    looked: list[str] = []
    route = TopicExchange.route

    def counted(exchange: TopicExchange, key: str, properties: BasicProperties) -> Any:
        looked.append(key)
        return route(exchange, key, properties)

    monkeypatch.setattr(TopicExchange, "route", counted)
    keys = [str(number) for number in range(40)]
    message = published(b"x", exchange="e", key="key", headers={"CC": keys})
    connection = client.connection
    connection.receive(message + sent(methods.BasicGet(queue="q", no_ack=True)), server.now_s)
    turns = 1
    while connection.is_input_paused:
        assert len(looked) == 8 * turns
        turns += 1
        connection.go_on(server.now_s)
    server.settle()
    assert turns == 6
    assert [answer.body for answer in client.answers if answer.body] == [b"x"]
