"""Any mixture of methods, contents, damage and time into a connection: answers, or a right close.

Whatever a client does, nothing is raised, every frame that the server sends is well formed, every
close has a reply code of PROTOCOL.md that is of its kind, and the next client is served.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.protocol import methods
from server.protocol.content import encode_content_header, encode_properties
from server.protocol.frames import method_frame
from server.protocol.layout import WireType
from server.protocol.methods import METHODS, Method
from server.protocol.spec import PROTOCOL_HEADER
from tests.conformance.test_protocol_document import document
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
    deadline=None,
    max_examples=120,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
at_length = settings(quick, max_examples=5000)

GOODBYE = methods.ConnectionClose(
    reply_code=200, reply_text="bye", failing_class_id=0, failing_method_id=0
)

NAMES = {
    "queue": ["q1", "q2", "q3", "", "amq.rabbitmq.reply-to", "q.missing"],
    "exchange": ["", "e1", "e2", "e3", "amq.direct", "amq.topic", "amq.headers", "e.missing"],
    "routing_key": ["q1", "q2", "q3", "", "a.b", "a.*", "#", "1", "amq.rabbitmq.reply-to.x"],
    "consumer_tag": ["", "c1", "c2"],
    "virtual_host": ["/", "/", "other"],
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

numbers = st.sampled_from([0, 1, 2, 3, 10, 255, -1, 1 << 40])
names = st.sampled_from(["q1", "q2", "e1", "e2", "", "missing"])
arguments = st.fixed_dictionaries(
    {},
    optional={
        "x-message-ttl": numbers,
        "x-expires": numbers,
        "x-max-length": numbers,
        "x-max-length-bytes": numbers,
        "x-max-priority": numbers,
        "x-delivery-limit": numbers,
        "x-overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx", "no"]),
        "x-dead-letter-exchange": names,
        "x-dead-letter-routing-key": names,
        "x-single-active-consumer": st.booleans(),
        "x-queue-mode": st.sampled_from(["lazy", "default", 1]),
        "alternate-exchange": names,
        "x-delayed-type": st.sampled_from(["topic", "direct", "no-type"]),
        "x-recent-history-length": numbers,
        "hash-header": names,
        "x-match": st.sampled_from(["all", "any", "any-with-x", 7]),
        "x-priority": numbers | st.just("high"),
        "a": st.none() | numbers | st.just("text"),
    },
).filter(lambda chosen: len(chosen) < 6) | strategies.tables()
few_arguments = st.just({}) | st.just({}) | arguments

message_headers = st.fixed_dictionaries(
    {},
    optional={
        "CC": st.lists(names, max_size=3) | st.just("text"),
        "BCC": st.lists(names, max_size=3) | st.none(),
        "x-delay": numbers | st.just("soon"),
        "x-death": st.just("forged") | st.lists(st.just({"queue": "q1", "count": "x"}), max_size=2),
        "a": st.none() | numbers | st.just("text"),
    },
)
properties = strategies.properties() | st.builds(
    strategies.BasicProperties,
    headers=st.none() | message_headers,
    delivery_mode=st.none() | st.sampled_from([0, 1, 2, 3]),
    priority=st.none() | st.integers(0, 255),
    expiration=st.none() | st.sampled_from(["0", "5", "1000", "soon", ""]),
    user_id=st.none() | st.sampled_from(["guest", "guest", "root"]),
    reply_to=st.none() | st.sampled_from(["q1", "amq.rabbitmq.reply-to"]),
)


def likely(cls: type[Method]) -> st.SearchStrategy[Method]:
    """A method of the class whose names mean something, and whose numbers are small."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for argument in cls.layout.arguments:
        if argument.is_reserved:
            continue
        if argument.name in NAMES:
            fields[argument.name] = st.sampled_from(NAMES[argument.name])
        elif argument.wire_type is WireType.TABLE:
            fields[argument.name] = few_arguments
        elif argument.wire_type is WireType.BIT:
            fields[argument.name] = st.sampled_from([False, False, False, True])
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


Action = Send | Wait | Again

channels = st.sampled_from([1, 1, 1, 1, 2, 2, 3])
wrong_channels = st.sampled_from([0, 9, 2047, 2048, 65535])
common = [
    methods.QueueDeclare,
    methods.QueueDeclare,
    methods.ExchangeDeclare,
    methods.QueueBind,
    methods.ExchangeBind,
    methods.BasicConsume,
    methods.BasicConsume,
    methods.BasicGet,
    methods.BasicGet,
    methods.BasicAck,
    methods.BasicNack,
    methods.BasicReject,
    methods.BasicRecover,
    methods.BasicQos,
    methods.BasicCancel,
    methods.ConfirmSelect,
    methods.TxSelect,
    methods.TxCommit,
    methods.TxRollback,
    methods.ChannelOpen,
    methods.ChannelFlow,
    methods.QueuePurge,
    methods.QueueDelete,
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
    st.sampled_from([0] * 20 + [1, -1, 200_000]),
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
legal = usual | contents | contents
sends = st.one_of(
    st.builds(Send, legal, some_cuts),
    st.builds(Send, legal),
    st.builds(Send, legal),
    st.builds(Send, st.builds(several, legal, legal, legal | anything), some_cuts),
    st.builds(Send, anything, some_cuts),
)
actions = st.lists(
    st.one_of(
        sends,
        sends,
        sends,
        sends,
        st.builds(Wait, st.sampled_from([1, 10, 1000, 700_000])),
        st.builds(Again, st.booleans()),
    ),
    max_size=30,
)


def check_answers(answers: list[Answer]) -> None:
    """What a connection may have said, from the first word to the last."""
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
    client.send(content(1, publish, b"still here", strategies.BasicProperties(), 0, 1))
    said = {type(answer.method): answer for answer in client.answers}
    assert said[methods.BasicDeliver].body == b"still here"
    assert methods.BasicAck in said
    assert methods.BasicReturn not in said
    assert not client.ask(1, methods.BasicAck(delivery_tag=1))
    closed = client.ask(0, GOODBYE)
    assert isinstance(closed[-1].method, methods.ConnectionCloseOk)
    client.lose()


def run(chosen: list[Action], make_client: Callable[[SimulatedServer], SimulatedClient]) -> None:
    """Do the actions, one client after the other, and check all that was said."""
    with SimulatedServer() as server:
        gone: list[SimulatedClient] = []
        client = make_client(server)
        for action in chosen:
            if isinstance(action, Send):
                places = sorted(cut % (len(action.octets) + 1) for cut in action.cuts)
                ends = [*places, len(action.octets)]
                for start, end in zip([0, *places], ends, strict=True):
                    client.send(action.octets[start:end])
            elif isinstance(action, Wait):
                server.pass_time(action.ms)
            elif not action.vanishes:
                client.ask(0, GOODBYE)
            if isinstance(action, Again) or client.connection.is_finished:
                client.lose()
                gone.append(client)
                client = make_client(server)
        for each in [*gone, client]:
            check_answers(each.answers)
        if client in server.clients:
            client.lose()
        check_served(server)


def opened(server: SimulatedServer) -> SimulatedClient:
    """Its first words, to be checked with the rest, are lost: the handshake is fuzzed apart."""
    return SimulatedClient.opened(server, channels=2)


@quick
@given(actions)
def test_an_open_connection_answers_or_closes(chosen: list[Action]) -> None:
    run(chosen, opened)


@pytest.mark.long
@at_length
@given(actions)
def test_an_open_connection_answers_or_closes_at_length(chosen: list[Action]) -> None:
    run(chosen, opened)


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
    close = methods.ChannelClose(reply_code=501, reply_text="", failing_class_id=0, failing_method_id=0)
    for method in (get_ok, close, methods.BasicGet(queue="q")):
        with pytest.raises(AssertionError):
            check_answers([Answer(1, method)])
