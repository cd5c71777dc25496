"""Publishes of many clients in one round of reads; `test_publish_order` tests their order."""

import pytest

from amqpstore import Options, Store
from amqpstore.format.records import checksum_seed
from amqpstore.provenance.client_trails import read_notes
from amqpstore_server.broker.channels.confirms import Publisher
from amqpstore_server.broker.channels.firehose import Origin
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import (
    BasicProperties,
    encode_properties,
)
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from amqpstore_server.protocol.spec import ReplyCode
from tests.content_header import encode_content_header
from tests.fuzz.simulated import SimulatedClient, SimulatedServer
from tests.simulated_broker import DIRECTORY

WARM = 3
LEAST_FREE_BYTES = 1 << 20


def publish(
    body: bytes,
    key: str = "q",
    mode: int = 2,
    *,
    exchange: str = "",
    channel: int = 1,
    correlation_id: str | None = None,
) -> bytes:
    """The frames of a mandatory message."""
    method = methods.BasicPublish(exchange=exchange, routing_key=key, mandatory=True)
    properties = encode_properties(
        BasicProperties(delivery_mode=mode, correlation_id=correlation_id)
    )
    return b"".join(
        (
            method_frame(channel, method.encode()),
            header_frame(channel, encode_content_header(60, len(body), properties)),
            *map(bytes, body_frames(channel, body, 0)),
        )
    )


def clients(server: SimulatedServer, count: int = 3, *, channels: int = 1) -> list[SimulatedClient]:
    """Clients of which the broker knows all that it asks of a publish."""
    server.queue("q")
    server.queue("transient", durable=False)
    found = []
    for _ in range(count):
        client = SimulatedClient.opened(server, channels=channels)
        client.ask(1, methods.ConfirmSelect())
        for _ in range(WARM):
            client.send(publish(b"warm") + publish(b"warm", "transient", 1))
        found.append(client)
    found[0].ask(1, methods.QueuePurge(queue="q"), methods.QueuePurge(queue="transient"))
    for client in found:
        client.answers.clear()
    return found


def bodies(server: SimulatedServer, name: str = "q") -> list[bytes]:
    store_queue = server.vhost.queue(name).priorities.lowest
    return [message.body for part in server.store.stored.browse(store_queue) for message in part]


def receive(client: SimulatedClient, octets: bytes) -> None:
    """Have a client's bytes read, in a round that goes on."""
    client.connection.receive(octets, client.server.now_s)


def entries(server: SimulatedServer) -> int:
    return len(server.services.deferred.entries)


def test_publishes_of_a_round_are_enqueued_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with SimulatedServer() as server:
        placed: list[int] = []
        enqueue = Store.enqueue

        def counted(store: Store, to: object, messages: list[object], **more: object) -> bool:
            placed.append(len(messages))
            return enqueue(store, to, messages, **more)  # type: ignore[arg-type]

        some = clients(server)
        monkeypatch.setattr(Store, "enqueue", counted)
        for number, client in enumerate(some):
            receive(client, publish(b"%d" % number))
        assert (placed, entries(server)) == ([], 3)
        server.settle()
        assert placed == [3]
        assert bodies(server) == [b"0", b"1", b"2"]
        assert [answer.method for client in some for answer in client.answers] == [
            methods.BasicAck(delivery_tag=2 * WARM + 1, multiple=False)
        ] * 3


@pytest.mark.parametrize(
    "asked",
    [
        methods.QueueDeclare(queue="q", passive=True),
        methods.QueuePurge(queue="q"),
        methods.BasicGet(queue="q", no_ack=True),
    ],
)
def test_whatever_follows_them_in_the_round_sees_them(asked: methods.Method) -> None:
    with SimulatedServer() as server:
        one, two, _ = clients(server)
        receive(one, publish(b"first"))
        (answer,) = two.ask(1, asked)
        if isinstance(answer.method, methods.BasicGetOk):
            assert answer.body == b"first"
        else:
            assert isinstance(answer.method, methods.QueueDeclareOk | methods.QueuePurgeOk)
            assert answer.method.message_count == 1


def test_an_acked_round_goes_on() -> None:
    """Consumers ack all the time: publishes need not be placed for it."""
    with SimulatedServer() as server:
        one, two, _ = clients(server)
        two.ask(1, methods.BasicConsume(queue="q", consumer_tag=""))
        one.send(publish(b"delivered"))
        receive(one, publish(b"waits"))
        receive(two, method_frame(1, methods.BasicAck(delivery_tag=1).encode()))
        assert entries(server) == 1


def test_messages_of_another_kind_place_those_before() -> None:
    with SimulatedServer() as server:
        one, two, three = clients(server)
        receive(one, publish(b"durable"))
        receive(two, publish(b"not", "transient", 1))
        assert entries(server) == 1
        assert bodies(server) == [b"durable"]
        receive(three, publish(b"durable again"))
        assert bodies(server, "transient") == [b"not"]


def test_large_ones_do_not_wait() -> None:
    with SimulatedServer() as server:
        one, *_ = clients(server)
        receive(one, publish(b"x" * 70_000))
        assert entries(server) == 0
        assert len(bodies(server)) == 1


@pytest.mark.parametrize(("messages", "queues"), [(1, 64), (64, 1)])
def test_many_copies_do_not_wait(messages: int, queues: int) -> None:
    """The time it takes to place them counts as that of the client's read."""
    with SimulatedServer() as server:
        server.exchange("fanout", "fanout")
        for number in range(queues):
            server.queue(f"copy{number}")
            server.bind("fanout", f"copy{number}")
        one, *_ = clients(server)
        one.send(publish(b"", exchange="fanout"))
        receive(one, publish(b"waits"))
        receive(one, publish(b"", exchange="fanout") * messages)
        assert entries(server) == 0
        assert len(bodies(server, "copy0")) == 1 + messages


def test_a_connection_that_is_lost_has_published() -> None:
    with SimulatedServer() as server:
        one, two, _ = clients(server)
        receive(one, publish(b"last"))
        one.connection.abandon()
        assert entries(server) == 0
        two.send(publish(b"after"))
        assert bodies(server) == [b"last", b"after"]


def test_on_a_full_disk_each_client_is_refused_what_does_not_fit() -> None:
    options = Options(reserve_bytes=0, least_free_bytes=LEAST_FREE_BYTES)
    with SimulatedServer(options=options) as server:
        one, two, three = clients(server)
        server.disk.capacity_bytes = 0
        used = -server.disk.free_bytes("/")
        server.disk.capacity_bytes = used + LEAST_FREE_BYTES + 60_000
        server.store.upkeep.housekeep()
        receive(one, publish(b"fits"))
        receive(two, publish(b"x" * 65_000))
        receive(three, publish(b"too"))
        server.settle()
        assert bodies(server) == [b"fits", b"too"]
        (close,) = two.answers
        assert isinstance(close.method, methods.ConnectionClose)
        assert close.method.reply_code == ReplyCode.RESOURCE_ERROR
        assert (close.method.failing_class_id, close.method.failing_method_id) == (60, 40)
        assert [answer.method for answer in one.answers] == [
            methods.BasicAck(delivery_tag=2 * WARM + 1, multiple=False)
        ]


def test_what_follows_on_another_channel_after_a_refusal_is_ignored() -> None:
    options = Options(reserve_bytes=0, least_free_bytes=LEAST_FREE_BYTES)
    with SimulatedServer(options=options) as server:
        one, two, _ = clients(server, channels=2)
        server.disk.capacity_bytes = 0
        used = -server.disk.free_bytes("/")
        server.disk.capacity_bytes = used + LEAST_FREE_BYTES + 60_000
        server.store.upkeep.housekeep()
        receive(one, publish(b"x" * 65_000) + publish(b"would fit", channel=2))
        receive(two, publish(b"fits"))
        assert entries(server) == 3
        server.settle()
        assert bodies(server) == [b"fits"]
        (close,) = one.answers
        assert isinstance(close.method, methods.ConnectionClose)


def answered(client: SimulatedClient) -> list[tuple[type[methods.Method], int]]:
    """Return the answers of the server; tags of confirms are counted from after `clients`."""
    return [
        (
            type(answer.method),
            answer.method.delivery_tag - 2 * WARM
            if isinstance(answer.method, methods.BasicAck | methods.BasicNack)
            else 0,
        )
        for answer in client.answers
    ]


@pytest.mark.parametrize(
    "wrong",
    [methods.QueueDeclare(queue="missing", passive=True), methods.BasicAck(delivery_tag=99)],
)
def test_a_channel_error_comes_after_the_confirms_of_what_was_before_it(
    wrong: methods.Method,
) -> None:
    with SimulatedServer() as server:
        one, two, _ = clients(server)
        receive(one, publish(b"1") + method_frame(1, wrong.encode()) + publish(b"not"))
        receive(two, publish(b"2"))
        server.settle()
        assert bodies(server) == [b"1", b"2"]
        assert answered(one) == [(methods.BasicAck, 1), (methods.ChannelClose, 0)]
        assert answered(two) == [(methods.BasicAck, 1)]


def test_a_connection_error_in_the_middle_costs_nobody_else_anything() -> None:
    with SimulatedServer() as server:
        one, two, three = clients(server)
        receive(one, publish(b"1"))
        receive(two, publish(b"2") + method_frame(9, methods.TxSelect().encode()) + publish(b"not"))
        receive(three, publish(b"3"))
        server.settle()
        assert bodies(server) == [b"1", b"2", b"3"]
        assert answered(one) == answered(three) == [(methods.BasicAck, 1)]
        assert answered(two) == [(methods.ConnectionClose, 0)]


def test_what_a_queue_with_a_limit_refuses_keeps_its_place() -> None:
    with SimulatedServer() as server:
        server.queue("limited", max_length=1, overflow="reject-publish")
        one, two, _ = clients(server)
        receive(two, publish(b"first"))
        receive(one, publish(b"1"))
        receive(one, publish(b"2", "limited") + publish(b"3", "limited"))
        receive(one, publish(b"4"))
        server.settle()
        assert bodies(server) == [b"first", b"1", b"4"]
        assert bodies(server, "limited") == [b"2"]
        assert sorted(answered(one), key=lambda one: one[1]) == [
            (methods.BasicAck, 1),
            (methods.BasicAck, 2),
            (methods.BasicNack, 3),
            (methods.BasicAck, 4),
        ]


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (0, [(methods.BasicNack, 1), (methods.BasicAck, 3)]),
        (1, [(methods.BasicAck, 3)]),
    ],
)
def test_what_needed_a_decision_is_answered_before_what_follows_it_in_the_read(
    max_length: int, expected: list[tuple[type[methods.Method], int]]
) -> None:
    """A confirm of several messages confirms those before them as well."""
    with SimulatedServer() as server:
        server.queue("limited", max_length=max_length, overflow="reject-publish")
        one, *_ = clients(server)
        qos = method_frame(1, methods.BasicQos(prefetch_size=0, prefetch_count=1).encode())
        receive(one, publish(b"1", "limited") + qos + publish(b"2") + publish(b"3") + qos)
        server.settle()
        assert [answer for answer in answered(one) if answer[1]] == expected


def test_what_comes_back_comes_before_its_confirm() -> None:
    with SimulatedServer() as server:
        one, two, _ = clients(server)
        receive(two, publish(b"first"))
        receive(one, publish(b"1") + publish(b"2", "missing") + publish(b"3"))
        server.settle()
        assert bodies(server) == [b"first", b"1", b"3"]
        kinds = answered(one)
        assert kinds.index((methods.BasicReturn, 0)) < kinds.index((methods.BasicAck, 2))
        assert {tag for _, tag in kinds} == {0, 1, 2, 3}


def test_a_transaction_waits_for_its_commit_and_comes_after_what_was_before_it() -> None:
    with SimulatedServer() as server:
        some = clients(server)
        client = SimulatedClient.opened(server, channels=1)
        client.ask(1, methods.TxSelect())
        receive(some[0], publish(b"1"))
        receive(client, publish(b"2"))
        receive(some[1], publish(b"3"))
        server.settle()
        assert bodies(server) == [b"1", b"3"]
        receive(some[0], publish(b"4"))
        receive(client, method_frame(1, methods.TxCommit().encode()))
        receive(some[1], publish(b"5"))
        server.settle()
        assert bodies(server) == [b"1", b"3", b"4", b"2", b"5"]


def test_each_publish_counts_as_one_that_is_to_be_confirmed() -> None:
    with SimulatedServer() as server:
        some = clients(server)
        warm = server.vhost.counters.confirmable
        assert warm == 2 * WARM * len(some)
        for client in some:
            receive(client, publish(b"1") + publish(b"2"))
        server.work()
        channels = [client.connection.channels[0].broker_channel for client in some]
        assert [channel.unconfirmed_count for channel in channels] == [2] * len(some)
        server.settle()
        assert [channel.unconfirmed_count for channel in channels] == [0] * len(some)
        assert server.vhost.counters.confirmable == warm + 2 * len(some)


def test_confirms_of_a_channel_that_has_closed_are_counted_with_those_of_other_closed_ones() -> (
    None
):
    with SimulatedServer() as server:
        one, *_ = clients(server, 1)
        warm, past = server.vhost.counters, server.vhost.channel_totals.past
        receive(one, publish(b"1") + publish(b"2"))
        close = methods.ChannelClose(
            reply_code=200, reply_text="", failing_class_id=0, failing_method_id=0
        )
        receive(one, method_frame(1, close.encode()))
        assert past.publish == warm.publish + 2
        assert past.confirm == warm.confirm
        server.settle()
        assert past.confirm == warm.confirm + 2
        counters = server.vhost.counters
        assert (counters.publish, counters.confirm) == (past.publish, past.confirm)


def test_one_whose_publish_waits_counts_as_a_publisher() -> None:
    """An alarm stops publishers after their next read."""
    with SimulatedServer() as server:
        clients(server)
        client = SimulatedClient.opened(server, channels=1)
        assert not client.connection.input.has_published
        receive(client, publish(b"1"))
        assert client.connection.input.has_published


def test_no_more_targets_are_remembered_than_fit() -> None:
    with SimulatedServer() as server:
        one, *_ = clients(server, 1)
        server.exchange("topic", "topic")
        server.bind("topic", "q", "#")
        session = one.connection.session
        assert session is not None
        targets = session.context.simple_targets
        most = 0
        for start in range(0, 1000, 50):
            keys = [f"key{number}" for number in range(start, start + 50)]
            read = [publish(b"", key, exchange="topic", correlation_id="x" * 200) for key in keys]
            for _ in range(2):
                receive(one, b"".join(read))
            server.work()
            most = max(most, sum(map(len, targets._known.values())))
        assert 300 < most < 700


@pytest.mark.parametrize("name", ["confirm_durable", "enqueued"])
def test_a_confirm_that_fails_costs_its_client_the_connection(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SimulatedServer() as server:
        first, second, third = clients(server)
        for client in (first, second, third):
            receive(client, publish(b"x"))
        broken = server.services.deferred.entries[1][0]
        whole = getattr(Publisher, name)

        def fails(publisher: Publisher, *arguments: object) -> None:
            if publisher is broken:
                raise RuntimeError("broken")
            whole(publisher, *arguments)

        monkeypatch.setattr(Publisher, name, fails)
        server.settle()
        for client in (first, third):
            (confirm,) = client.answers
            assert isinstance(confirm.method, methods.BasicAck)
        (close,) = second.answers
        assert isinstance(close.method, methods.ConnectionClose)
        assert close.method.reply_code == ReplyCode.INTERNAL_ERROR


def test_what_cannot_be_enqueued_costs_these_clients_their_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with SimulatedServer() as server:
        one, two, three = clients(server)
        receive(one, publish(b"x"))
        receive(two, publish(b"y"))

        def fails(*_arguments: object, **_more: object) -> bool:
            raise RuntimeError("broken")

        monkeypatch.setattr(Store, "enqueue", fails)
        server.settle()
        for client in (one, two):
            (close,) = client.answers
            assert isinstance(close.method, methods.ConnectionClose)
        assert three.answers == []


def test_a_route_that_is_gone_is_not_remembered() -> None:
    with SimulatedServer() as server:
        one, two, _ = clients(server)
        two.ask(1, methods.QueueDelete(queue="q"))
        one.send(publish(b"nowhere"))
        assert isinstance(server.queue("q"), Queue)
        one.send(publish(b"there"))
        assert bodies(server) == [b"there"]


def test_a_permission_that_is_gone_is_not_remembered() -> None:
    with SimulatedServer() as server:
        one, *_ = clients(server)
        row = {"configure": "", "write": "", "read": "", "topic": {}}
        server.broker.define_permissions("guest", "/", row)
        one.send(publish(b"refused"))
        assert bodies(server) == []
        (close,) = one.answers
        assert isinstance(close.method, methods.ChannelClose)
        assert close.method.reply_code == ReplyCode.ACCESS_REFUSED


def test_one_read_of_several_kinds_is_confirmed_kind_by_kind() -> None:
    with SimulatedServer() as server:
        client, *_ = clients(server)
        for octets in (
            publish(b"1", mode=1) + publish(b"2"),
            publish(b"3", "transient") + publish(b"4"),
            publish(b"5", "transient") + publish(b"6", mode=1) + publish(b"7"),
        ):
            receive(client, octets)
            server.work()
        client.take_output()
        tags = [
            a.method.delivery_tag for a in client.answers if isinstance(a.method, methods.BasicAck)
        ]
        assert [tag - 2 * WARM for tag in tags] == [1, 3, 5, 6]
        server.settle()
        tags = [
            a.method.delivery_tag for a in client.answers if isinstance(a.method, methods.BasicAck)
        ]
        assert [tag - 2 * WARM for tag in tags] == [1, 3, 5, 6, 2, 4, 7]
        assert (bodies(server), bodies(server, "transient")) == (
            [b"1", b"2", b"4", b"6", b"7"],
            [b"3", b"5"],
        )


def test_who_published_each_message_of_a_round_is_noted() -> None:
    with SimulatedServer() as server:
        some = clients(server)
        server.queue("r")
        for client in some:
            client.send(publish(b"warm", "r"))
        server.services.trails = server.store.provenance.client_trails(max_files=2)
        for queue in ("q", "r"):
            server.vhost.queue(queue).backlog.purge()
        octets = publish(b"1", "r") + publish(b"2") + publish(b"3", "r")
        for client in some:
            receive(client, octets)
        receive(some[0], publish(b"alone"))
        users = ["ann", "bob", "carl"]
        waiting = [entry[0] for entry in server.services.deferred.entries]
        for publisher, user in zip(waiting, [*users, users[0]], strict=True):
            publisher.origin = Origin(user, 1, user)  # type: ignore[misc]
        server.settle()
        server.services.trails.flush()
        server.store.sync()
        seed = checksum_seed(server.store.store_id)
        notes = [note for part in read_notes(server.disk, DIRECTORY, seed) for note in part]
        publishers = {
            (queue, sequence): note.client.connection
            for queue in ("q", "r")
            for note in notes
            for sequence in range(note.first_sequence, note.first_sequence + note.message_count)
            if note.queue_id == server.vhost.queue(queue).priorities.lowest.id
        }
        first = {name: 3 * WARM + 1 if name == "q" else 4 for name in ("q", "r")}
        assert [publishers["q", first["q"] + place] for place in range(4)] == [*users, users[0]]
        assert [publishers["r", first["r"] + place] for place in range(6)] == [
            user for user in users for _ in range(2)
        ]
        assert len(publishers) == 10
