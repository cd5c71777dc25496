"""Any mixture of methods, contents, damage and time into a connection: answers, or a right close.

Whatever a client does, nothing is raised, every frame that the server sends is well formed, every
close has a reply code of PROTOCOL.md that is of its kind, and the next client is served: also of
the same server started again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import (
    BasicProperties,
    encode_properties,
)
from amqpstore_server.protocol.frames import method_frame
from amqpstore_server.protocol.layout import WireType
from amqpstore_server.protocol.methods import METHODS, Method
from amqpstore_server.protocol.spec import PROTOCOL_HEADER
from tests.conformance.test_protocol_document import document
from tests.content_header import encode_content_header
from tests.format.document import table
from tests.fuzz.simulated import Answer, SimulatedClient, SimulatedServer
from tests.fuzz.test_codec import damaged, frame
from tests.unit.protocol import strategies

KINDS = {int(row.cells["code"]): row.cells["kind"] for row in table(document(), "Reply codes")}
SENT_BY_CLIENTS = {
    row.cells["method"].strip("`")
    for row in table(document(), "Methods")
    if row.cells["direction"] != "S>C"
}

quick = settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
patient = pytest.mark.timeout(600)
"""A failing example is made small before it is shown, and that takes its time."""

at_length = settings(quick, max_examples=2000)

GOODBYE = methods.ConnectionClose(
    reply_code=200, reply_text="bye", failing_class_id=0, failing_method_id=0
)
CHANNEL_GOODBYE = methods.ChannelClose(
    reply_code=200, reply_text="bye", failing_class_id=0, failing_method_id=0
)

NAMES = {
    "queue": ["q1", "q2", "q3", "", "amq.rabbitmq.reply-to", "q.missing"],
    "exchange": ["", "e1", "e2", "e3", "", "amq.direct", "amq.topic", "amq.headers", "e.missing"],
    "routing_key": ["q1", "q2", "q3", "", "a.b", "a.*", "#", "1", "amq.rabbitmq.reply-to.x"],
    "consumer_tag": ["", "c1", "c2"],
    "virtual_host": ["/", "/", "/", "other"],
    "type": [
        "direct",
        "fanout",
        "topic",
        "headers",
        "x-consistent-hash",
        "x-random",
        "x-recent-history",
        "x-delayed-message",
        "no-type",
    ],
}
for _other in ("source", "destination"):
    NAMES[_other] = NAMES["exchange"]


def rarely(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The usual, and one time in ten or so the odd."""
    return st.integers(0, 9).flatmap(lambda drawn: odd if drawn == 7 else usual)


names = st.sampled_from(["q1", "q2", "e1", "e2", "", "missing"])
wild_numbers = st.sampled_from([0, 1, 2, 3, 10, 255, -1, 1 << 40])
small_numbers = st.sampled_from([0, 1, 2, 10])


def queue_arguments(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "x-message-ttl": numbers,
            "x-expires": numbers.filter(bool),
            "x-max-length": numbers,
            "x-max-length-bytes": numbers,
            "x-max-priority": numbers,
            "x-delivery-limit": numbers,
            "x-overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
            "x-dead-letter-exchange": names,
            "x-single-active-consumer": st.booleans(),
            "x-queue-mode": st.sampled_from(["lazy", "default"]),
        },
    )


other_arguments = st.fixed_dictionaries(
    {},
    optional={
        "x-overflow": st.sampled_from(["drop-tail", 1]),
        "x-dead-letter-routing-key": names,
        "alternate-exchange": names,
        "x-delayed-type": st.sampled_from(["topic", "direct", "no-type"]),
        "x-recent-history-length": wild_numbers,
        "hash-header": names,
        "x-match": st.sampled_from(["all", "any", "any-with-x", 7]),
        "x-priority": wild_numbers | st.just("high"),
        "a": st.none() | wild_numbers | st.just("text"),
    },
)
arguments = rarely(
    st.just({}) | queue_arguments(small_numbers),
    queue_arguments(wild_numbers) | other_arguments | strategies.tables(),
)

message_headers = st.fixed_dictionaries(
    {},
    optional={
        "CC": st.lists(names, max_size=3),
        "BCC": st.lists(names, max_size=3),
        "x-delay": small_numbers,
        "a": st.none() | small_numbers | st.just("text"),
    },
)
odd_headers = st.fixed_dictionaries(
    {},
    optional={
        "CC": st.just("text"),
        "BCC": st.none(),
        "x-delay": st.just("soon"),
        "x-death": st.just("forged") | st.lists(st.just({"queue": "q1", "count": "x"}), max_size=2),
        "x-first-death-queue": wild_numbers,
    },
)
usual_properties = st.builds(
    BasicProperties,
    headers=st.none() | message_headers,
    delivery_mode=st.sampled_from([None, 1, 2, 2]),
    priority=st.none() | st.integers(0, 12),
    expiration=st.sampled_from([None, None, None, "0", "5", "1000"]),
    user_id=st.sampled_from([None, None, "guest"]),
    reply_to=rarely(st.none(), st.sampled_from(["q1", "amq.rabbitmq.reply-to"])),
)
odd_properties = strategies.properties() | st.builds(
    BasicProperties,
    headers=odd_headers,
    delivery_mode=st.integers(0, 255),
    priority=st.integers(0, 255),
    expiration=st.sampled_from([None, "soon", ""]),
    user_id=st.sampled_from([None, "root"]),
)
properties = rarely(st.just(BasicProperties()) | usual_properties, odd_properties)


def likely(cls: type[Method]) -> st.SearchStrategy[Method]:
    """A method of the class whose names mean something, and whose numbers are small."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for argument in cls.layout.arguments:
        if argument.is_reserved:
            continue
        if argument.name in NAMES:
            # The first names are those that are there.
            known, odd = NAMES[argument.name][:3], NAMES[argument.name][3:]
            fields[argument.name] = rarely(st.sampled_from(known), st.sampled_from(odd or known))
        elif argument.wire_type is WireType.TABLE:
            fields[argument.name] = arguments
        elif argument.wire_type is WireType.BIT:
            fields[argument.name] = rarely(st.just(False), st.just(True))
        elif argument.name in ("delivery_tag", "prefetch_count", "prefetch_size"):
            fields[argument.name] = st.sampled_from([0, 1, 2, 3, 4, 5, 9])
        else:
            fields[argument.name] = strategies.arguments(argument.wire_type)
    return st.builds(cls, **fields)


class Send(NamedTuple):
    """Bytes for the connection, whole or in several reads."""

    octets: bytes
    cuts: tuple[int, ...] = ()


class Wait(NamedTuple):
    """Time that passes."""

    ms: int


class Again(NamedTuple):
    """The client goes, and another comes. `vanishes`: its socket is gone, with no goodbye."""

    vanishes: bool


class Settle(NamedTuple):
    """A delivery is acked, nacked or rejected: the one that came `back` before the last."""

    how: type[Method]
    back: int
    flag: bool

    def method(self, client: SimulatedClient) -> tuple[int, Method] | None:
        """The channel, and what to send on it; None where there was no delivery."""
        tags = [
            (answer.channel, answer.method.delivery_tag)
            for answer in client.answers
            if isinstance(answer.method, (methods.BasicDeliver, methods.BasicGetOk))
        ]
        if not tags:
            return None
        channel, tag = tags[-1 - self.back % len(tags)]
        if self.how is methods.BasicAck:
            return channel, methods.BasicAck(delivery_tag=tag, multiple=self.flag)
        if self.how is methods.BasicReject:
            return channel, methods.BasicReject(delivery_tag=tag, requeue=self.flag)
        return channel, methods.BasicNack(delivery_tag=tag, multiple=self.flag, requeue=self.flag)


class Swap(NamedTuple):
    """The actions that follow are those of another client, connected at the same time."""


Action = Send | Wait | Again | Settle | Swap

channels = rarely(st.just(1) | st.just(2), st.sampled_from([1, 2, 3]))
wrong_channels = st.sampled_from([0, 9, 2047, 2048, 65535])
common = [
    methods.QueueDeclare,
    methods.QueueDeclare,
    methods.ExchangeDeclare,
    methods.QueueBind,
    methods.ExchangeBind,
    methods.BasicConsume,
    methods.BasicConsume,
    methods.BasicConsume,
    methods.BasicConsume,
    methods.BasicGet,
    methods.BasicGet,
    methods.BasicGet,
    methods.BasicGet,
    methods.BasicRecover,
    methods.BasicQos,
    methods.BasicCancel,
    methods.ConfirmSelect,
    methods.TxSelect,
    methods.TxCommit,
    methods.TxRollback,
    methods.ChannelFlow,
    methods.QueuePurge,
    methods.QueueDelete,
    methods.QueueUnbind,
    methods.ExchangeDelete,
]
all_sent = [cls for cls in METHODS.values() if cls.name in SENT_BY_CLIENTS]


def encoded(channel: int, method: Method) -> bytes:
    return method_frame(channel, method.encode())


def content(
    channel: int, publish: Method, body: bytes, fields: Any, announced: int, pieces: int
) -> bytes:
    """A publish. `announced` is how much the header is off, `pieces` the frames of the body."""
    size = max(0, len(body) + announced)
    header = encode_content_header(60, size, encode_properties(fields))
    step = max(1, -(-len(body) // pieces))
    parts = [frame(3, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return encoded(channel, publish) + frame(2, channel, header) + b"".join(parts)


contents = st.builds(
    content,
    channels,
    likely(methods.BasicPublish),
    st.binary(max_size=30) | st.just(bytes(5000)),
    properties,
    rarely(st.just(0), st.sampled_from([0, 0, 1, -1, 200_000])),
    st.integers(1, 3),
)
usual = st.builds(encoded, channels, st.sampled_from(common).flatmap(likely))
anything = st.one_of(
    st.builds(encoded, channels, st.sampled_from(all_sent).flatmap(likely)),
    st.builds(encoded, wrong_channels, st.sampled_from(common).flatmap(likely)),
    st.builds(encoded, channels, strategies.methods),
    damaged(usual | contents),
    st.builds(frame, st.sampled_from([2, 3]), channels, st.binary(max_size=30)),
    st.just(frame(8, 0, b"")),
    st.binary(max_size=40),
)


def several(first: bytes, second: bytes, third: bytes) -> bytes:
    return first + second + third


some_cuts = st.lists(st.integers(0, 400), max_size=3).map(tuple)
legal = st.one_of(usual, usual, contents)
burst = st.builds(several, legal, legal, rarely(legal, anything))
settles = st.builds(
    Settle,
    st.sampled_from([methods.BasicAck, methods.BasicNack, methods.BasicReject]),
    st.integers(0, 3),
    st.booleans(),
)
sends = st.builds(Send, rarely(legal | burst, anything), rarely(st.just(()), some_cuts))
others = st.one_of(
    st.builds(Wait, st.sampled_from([1, 10, 1000, 700_000])),
    st.builds(Again, st.booleans()),
    st.just(Swap()),
)
action = rarely(sends | sends | sends | settles, others)
actions = st.lists(action, max_size=10) | st.lists(action, min_size=25, max_size=60)


def check_answers(answers: list[Answer]) -> None:
    """Check all that a connection has sent, from the first frame to the last."""
    tags: dict[int, int] = {}
    is_closing = False
    for channel, method, header, body in answers:
        assert method.name not in SENT_BY_CLIENTS or method.name in BOTH_WAYS, method
        if is_closing:
            assert isinstance(method, methods.ConnectionCloseOk), method
        if isinstance(method, methods.ConnectionClose):
            assert KINDS[method.reply_code] == "hard" or method.reply_code == 403, method
            assert method.reply_code != 541, method
            is_closing = True
        elif isinstance(method, methods.ChannelClose):
            assert KINDS[method.reply_code] == "soft", method
            tags.pop(channel, None)
        elif isinstance(method, methods.ChannelOpenOk):
            tags.pop(channel, None)
        elif isinstance(method, (methods.BasicDeliver, methods.BasicGetOk)):
            assert method.delivery_tag == tags.get(channel, 0) + 1, method
            tags[channel] = method.delivery_tag
        elif isinstance(method, methods.BasicReturn):
            assert method.reply_code in (312, 313), method
        if header is not None:
            assert header.body_size == len(body)


BOTH_WAYS = {
    row.cells["method"].strip("`")
    for row in table(document(), "Methods")
    if row.cells["direction"] == "both"
}


def check_served(server: SimulatedServer) -> None:
    """A new client can declare, publish, confirm, consume and ack."""
    client = SimulatedClient.opened(server, channels=1)
    declared = client.ask(1, methods.QueueDeclare(queue="", exclusive=True))
    assert isinstance(declared[0].method, methods.QueueDeclareOk), declared
    queue = declared[0].method.queue
    client.ask(1, methods.ConfirmSelect(), methods.BasicConsume(queue=queue, consumer_tag="t"))
    publish = methods.BasicPublish(exchange="", routing_key=queue, mandatory=True)
    client.send(content(1, publish, b"still here", BasicProperties(), 0, 1))
    said = {type(answer.method): answer for answer in client.answers}
    assert said[methods.BasicDeliver].body == b"still here"
    assert methods.BasicAck in said
    assert methods.BasicReturn not in said
    assert not client.ask(1, methods.BasicAck(delivery_tag=1))
    check_answers(client.answers)
    closed = client.ask(0, GOODBYE)
    assert isinstance(closed[-1].method, methods.ConnectionCloseOk)
    client.lose()


def be_polite(client: SimulatedClient, seen: int) -> None:
    """Answer the closes behind the first `seen` answers; what was closed can be opened again."""
    closed: dict[int, type[Method]] = {}
    for channel, method, *_ in client.answers[seen:]:
        if isinstance(method, (methods.ConnectionClose, methods.ChannelClose)):
            closed[channel] = type(method)
        elif isinstance(method, methods.ChannelOpenOk):
            closed.pop(channel, None)
    if closed.pop(0, None) is not None:
        client.ask(0, methods.ConnectionCloseOk())
        return
    for channel in closed:
        # Half a frame, if that is what was sent last, swallows these.
        is_cut = bool(client.connection._receiver._rest)
        is_over = client.connection.is_finished
        answers = client.ask(channel, methods.ChannelCloseOk(), methods.ChannelOpen())
        # It may have sent a close-ok already: then this one closes the connection.
        said = {type(answer.method) for answer in answers}
        if not is_cut and not is_over:
            assert said & {methods.ChannelOpenOk, methods.ConnectionClose}, answers


def check_drained(server: SimulatedServer) -> None:
    """Check that every queue, with no clients left, gives out exactly what it says it has."""
    client = SimulatedClient.opened(server, channels=1)
    for name, queue in list(server.broker.vhost("/").queues.items()):
        if queue.is_internal:
            continue  # no client may get from it
        [declared] = client.ask(1, methods.QueueDeclare(queue=name, passive=True))
        assert isinstance(declared.method, methods.QueueDeclareOk), declared
        assert declared.method.consumer_count == 0, declared
        for left in range(declared.method.message_count, 0, -1):
            [got] = client.ask(1, methods.BasicGet(queue=name, no_ack=True))
            assert isinstance(got.method, methods.BasicGetOk), (name, left)
            assert got.method.message_count == left - 1, name
        [got] = client.ask(1, methods.BasicGet(queue=name, no_ack=True))
        assert isinstance(got.method, methods.BasicGetEmpty), name
    check_answers(client.answers)
    client.lose()


def act(action: Send | Wait | Again | Settle, client: SimulatedClient) -> None:
    """Have the client do it."""
    if isinstance(action, Send):
        places = sorted(cut % (len(action.octets) + 1) for cut in action.cuts)
        ends = [*places, len(action.octets)]
        for start, end in zip([0, *places], ends, strict=True):
            client.send(action.octets[start:end])
    elif isinstance(action, Wait):
        client.server.pass_time(action.ms)
    elif isinstance(action, Settle):
        if settlement := action.method(client):
            client.ask(*settlement)
    elif not action.vanishes:
        client.ask(0, GOODBYE)


def run(
    chosen: list[Action],
    make_client: Callable[[SimulatedServer], SimulatedClient],
    *,
    politely: bool = False,
) -> None:
    """Do the actions, with two clients and their successors, and check all that was said."""
    with SimulatedServer() as server:
        gone: list[SimulatedClient] = []
        client, other = make_client(server), make_client(server)
        for action in chosen:
            if isinstance(action, Swap):
                client, other = other, client
                continue
            seen = len(client.answers)
            act(action, client)
            if politely:
                be_polite(client, seen)
            if isinstance(action, Again) or client.connection.is_finished:
                client.lose()
                gone.append(client)
                client = make_client(server)
        check_served(server)
        for each in (client, other):
            each.lose()
            gone.append(each)
        for each in gone:
            check_answers(each.answers)
        check_drained(server)
        server.restart()
        check_drained(server)
        check_served(server)


def opened(server: SimulatedServer) -> SimulatedClient:
    """Return a client with two channels, after declaring queues and exchanges of the names that are
    used most.
    """
    client = SimulatedClient.opened(server, channels=2)
    for asked in (
        methods.ExchangeDeclare(exchange="e1", type="topic"),
        methods.ExchangeDeclare(exchange="e2", type="fanout"),
        methods.QueueDeclare(queue="q1"),
        methods.QueueDeclare(queue="q2", durable=True, arguments={"x-max-priority": 3}),
        methods.QueueDeclare(queue="q3", arguments={"x-dead-letter-exchange": "e2"}),
        methods.QueueBind(queue="q1", exchange="e1", routing_key="a.*"),
        methods.QueueBind(queue="q2", exchange="e2", routing_key=""),
    ):
        # What a client before it has made otherwise closes the channel: that is fine.
        client.ask(3, methods.ChannelOpen(), asked)
        if isinstance(client.answers[-1].method, methods.ChannelClose):
            client.ask(3, methods.ChannelCloseOk())
        else:
            client.ask(3, CHANNEL_GOODBYE)
    return client


@patient
@quick
@given(actions, st.booleans())
def test_an_open_connection_answers_or_closes(chosen: list[Action], politely: bool) -> None:
    run(chosen, opened, politely=politely)


@pytest.mark.long
@at_length
@given(actions, st.booleans())
def test_an_open_connection_answers_or_closes_at_length(
    chosen: list[Action], politely: bool
) -> None:
    run(chosen, opened, politely=politely)


hello = st.just(PROTOCOL_HEADER)
handshake_methods = st.one_of(
    st.just(SimulatedClient.start_ok()),
    st.just(methods.ConnectionTuneOk(channel_max=0, frame_max=0, heartbeat=1)),
    st.just(methods.ConnectionOpen(virtual_host="/")),
    st.sampled_from([cls for cls in METHODS.values() if cls.class_id == 10]).flatmap(likely),
)
handshake_frames = st.builds(encoded, st.sampled_from([0, 0, 0, 0, 0, 1]), handshake_methods)
handshakes = st.lists(
    st.one_of(
        st.builds(Send, handshake_frames, some_cuts),
        st.builds(Send, handshake_frames),
        st.builds(Send, damaged(handshake_frames)),
        st.builds(Send, legal | anything),
        st.builds(Wait, st.sampled_from([1, 1000, 4000, 20_000])),
    ),
    max_size=8,
)
beginnings = st.one_of(hello, hello, hello, damaged(hello), st.binary(max_size=12))
in_order = st.builds(
    lambda rest: [
        Send(encoded(0, SimulatedClient.start_ok())),
        Send(encoded(0, methods.ConnectionTuneOk(channel_max=0, frame_max=4096, heartbeat=1))),
        Send(encoded(0, methods.ConnectionOpen(virtual_host="/"))),
        *rest,
    ],
    handshakes,
)


def run_handshake(beginning: bytes, chosen: list[Action]) -> None:
    def make_client(server: SimulatedServer) -> SimulatedClient:
        client = SimulatedClient(server)
        client.send(beginning)
        return client

    run(chosen, make_client)


@patient
@quick
@given(beginnings, handshakes | in_order)
def test_a_handshake_goes_on_or_closes(beginning: bytes, chosen: list[Action]) -> None:
    run_handshake(beginning, chosen)


@pytest.mark.long
@at_length
@given(beginnings, handshakes | in_order)
def test_a_handshake_goes_on_or_closes_at_length(beginning: bytes, chosen: list[Action]) -> None:
    run_handshake(beginning, chosen)


def test_damage_in_the_answers_would_be_seen() -> None:
    """The guard itself: half a frame, an unknown code, a tag out of order."""
    with SimulatedServer() as server:
        client = SimulatedClient.opened(server, channels=1)
        client.connection.outbox.add(b"\x01\x00\x00")
        with pytest.raises(AssertionError, match="half a frame"):
            client.take_output()
    get_ok = methods.BasicGetOk(
        delivery_tag=2, redelivered=False, exchange="", routing_key="", message_count=0
    )
    close = methods.ChannelClose(
        reply_code=501, reply_text="", failing_class_id=0, failing_method_id=0
    )
    for method in (get_ok, close, methods.BasicGet(queue="q")):
        with pytest.raises(AssertionError):
            check_answers([Answer(1, method)])
