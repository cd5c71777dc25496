"""Publishes that come in one read have the same results as if they were handled one by one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpstore import Message, Placement, Store
from amqpstore_server.amqp.envelopes import SimpleTargets
from amqpstore_server.broker.messages.envelope import ParsedEnvelope
from amqpstore_server.broker.routing.routing import Route
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import (
    BasicProperties,
    encode_properties,
)
from amqpstore_server.protocol.events import ContentHeader, Target
from amqpstore_server.protocol.frames import body_frames, header_frame, method_frame
from tests.content_header import encode_content_header
from tests.fuzz.simulated import SimulatedClient, SimulatedServer

QUEUES = {"a": True, "b": True, "c": True, "transient": False, "audit": True}
"""Names, and whether they are durable. All that goes through the topic exchange is in `audit`."""

ROUTES = [("", "a"), ("", "b"), ("", "c"), ("", "transient"), ("", "missing")]
ROUTES += [("topic", "a"), ("topic", "b"), ("topic", "elsewhere")]


class Published(NamedTuple):
    """The properties of one message."""

    route: tuple[str, str]
    mode: int
    is_mandatory: bool
    priority: int | None
    message_id: str


def published(routes: list[tuple[str, str]], modes: list[int]) -> st.SearchStrategy[Published]:
    return st.builds(
        Published,
        st.sampled_from(routes),
        st.sampled_from(modes),
        st.booleans(),
        st.sampled_from([None, None, None, 4]),
        st.text("xyz", min_size=2, max_size=3),
    )


WARM = 2 * len(ROUTES)
"""Messages published before a read, so that routes and permissions are known."""

CLIENTS = 3

READS = st.one_of(
    st.lists(published(ROUTES[:3], [2]), min_size=2, max_size=20),
    st.lists(published(ROUTES[:4], [1, 2]), min_size=2, max_size=20),
    st.lists(published(ROUTES, [1, 2]), min_size=2, max_size=20),
    st.lists(published(ROUTES[:1] + ROUTES[5:], [2]), min_size=2, max_size=20),
)


def frames(number: int, one: Published) -> bytes:
    exchange, key = one.route
    method = methods.BasicPublish(exchange=exchange, routing_key=key, mandatory=one.is_mandatory)
    properties = BasicProperties(
        delivery_mode=one.mode, message_id=one.message_id, priority=one.priority
    )
    content = b"%d" % number
    return b"".join(
        (
            method_frame(1, method.encode()),
            header_frame(1, encode_content_header(60, len(content), encode_properties(properties))),
            *(bytes(part) for part in body_frames(1, content, 0)),
        )
    )


def opened(server: SimulatedServer) -> SimulatedClient:
    for name, is_durable in QUEUES.items():
        server.queue(name, durable=is_durable)
    server.exchange("topic", "topic")
    server.bind("topic", "audit", "#")
    for key in "ab":
        server.bind("topic", key, key)
    client = SimulatedClient.opened(server, channels=1)
    client.ask(1, methods.ConfirmSelect())
    # Routes and permissions are known from now on.
    warm = [Published(route, 2, False, None, "xyz") for route in ROUTES]
    for _ in range(WARM // len(warm)):
        client.send(b"".join(frames(0, one) for one in warm))
    for name in QUEUES:
        client.ask(1, methods.QueuePurge(queue=name))
    client.answers.clear()
    return client


def is_promised_later(one: Published) -> bool:
    """Tell whether the message has to be on the disk before it is confirmed."""
    return one.mode == 2 and one.route[1] not in ("missing", "transient")


def outcome(client: SimulatedClient) -> tuple[dict[str, list[bytes]], list[bytes], set[int]]:
    """Return what is in the queues, what came back, and the tags that are confirmed."""
    returned = [one.body for one in client.answers if isinstance(one.method, methods.BasicReturn)]
    tags = confirmed(client)
    contents: dict[str, list[bytes]] = {}
    for name in QUEUES:
        contents[name] = []
        while True:
            (answer,) = client.ask(1, methods.BasicGet(queue=name, no_ack=True))
            if isinstance(answer.method, methods.BasicGetEmpty):
                break
            contents[name].append(answer.body)
    return contents, returned, tags


def confirmed(client: SimulatedClient) -> set[int]:
    """Return the confirmed tags of the read."""
    tags: set[int] = set()
    for answer in client.answers:
        if isinstance(answer.method, methods.BasicAck):
            last = answer.method.delivery_tag
            tags |= set(range(1 if answer.method.multiple else last, last + 1))
    return tags - set(range(1, WARM + 1))


def check(read: list[Published]) -> None:
    stream = [frames(number, one) for number, one in enumerate(read)]
    with SimulatedServer() as server:
        client = opened(server)
        for one in stream:
            client.send(one)
        expected = outcome(client)
    with SimulatedServer() as server:
        client = opened(server)
        client.connection.receive(b"".join(stream), server.now_s)
        server.work()
        client.take_output()
        # Nothing is on the disk yet.
        for tag in confirmed(client):
            assert not is_promised_later(read[tag - WARM - 1])
        server.settle()
        found = outcome(client)
    assert found == expected
    assert found[2] == set(range(WARM + 1, WARM + len(read) + 1))


def check_round(reads: list[tuple[int, list[Published]]]) -> None:
    """Compare what several clients send in one round of reads with the same, one by one."""
    expected: list[object] = []
    for at_once in (False, True):
        with SimulatedServer() as server:
            clients = [opened(server) for _ in range(CLIENTS)]
            number = 0
            for sender, read in reads:
                octets = b"".join(frames(number + at, one) for at, one in enumerate(read))
                number += len(read)
                if at_once:
                    clients[sender].connection.receive(octets, server.now_s)
                else:
                    clients[sender].send(octets)
            server.settle()
            found = [outcome(client) for client in clients]
            assert expected in ([], found)
            expected = [*found]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, CLIENTS - 1), READS), min_size=2, max_size=6))
def test_a_round_of_many_clients_has_the_outcome_of_many_rounds(
    reads: list[tuple[int, list[Published]]],
) -> None:
    check_round(reads)


@settings(max_examples=40)
@given(READS)
def test_a_read_of_many_publishes_has_the_outcome_of_many_reads(read: list[Published]) -> None:
    check(read)


@pytest.mark.parametrize(
    "read",
    [
        [("topic", "a", 2), ("topic", "b", 2), ("topic", "a", 2)],
        [("", "a", 2), ("topic", "a", 2), ("", "a", 2)],
        [("", "a", 2), ("topic", "b", 2), ("topic", "a", 2), ("", "a", 2)],
        [("", "a", 2), ("", "b", 1), ("", "a", 2)],
        [("", "a", 2), ("", "transient", 2), ("", "a", 2)],
        [("", "a", 2), ("", "missing", 2), ("", "a", 2)],
    ],
)
def test_what_would_be_seen_to_be_out_of_order_stays_in_it(
    read: list[tuple[str, str, int]],
) -> None:
    messages = [Published((exchange, key), mode, True, None, "xyz") for exchange, key, mode in read]
    check(messages)


def check_mixed(*places: int) -> None:
    first, second = (ROUTES[place] for place in places)
    order = [first, second, first, second, second, first]
    check([Published(route, 2, False, None, "xyz") for route in order])


@pytest.mark.parametrize("places", [(5, 6), (5, 7)])
def test_a_queue_that_gets_its_messages_target_by_target_is_caught(
    places: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue = Store.enqueue

    def by_target(
        store: Store, placements: Sequence[Placement], messages: list[Message], **more: int
    ) -> bool:
        order = sorted(range(len(messages)), key=lambda at: messages[at].envelope.routing_key)
        changed = [
            one
            if one.indexes is None
            else one._replace(indexes=sorted(map(order.index, one.indexes)))
            for one in placements
        ]
        return enqueue(store, changed, [messages[at] for at in order], **more)

    check_mixed(*places)
    monkeypatch.setattr(Store, "enqueue", by_target)
    with pytest.raises(AssertionError):
        check_mixed(*places)


def test_a_channel_that_takes_all_routes_for_simple_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find(
        targets: SimpleTargets, target: Target, header: ContentHeader
    ) -> tuple[Route, ParsedEnvelope]:
        route = targets._router.shared_route(target.publish.exchange, target.publish.routing_key)
        assert route is not None
        route.is_durable = True
        return route, targets._envelopes.envelope(target, header, "")

    defer_many = SimpleTargets._defer_many

    def defer(targets: SimpleTargets, *arguments: Any) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimpleTargets, "_find", find)
            return defer_many(targets, *arguments)

    routes = [("", "a"), ("", "missing"), ("", "a")]
    read = [Published(route, 2, True, None, "xyz") for route in routes]
    check(read)
    monkeypatch.setattr(SimpleTargets, "_defer_many", defer)
    with pytest.raises(AssertionError):
        check(read)
