"""Permissions: patterns, and which method needs which of them."""

from pathlib import Path
from typing import Any

import pytest

from amqpstore_server.broker.errors import AccessRefusedError
from amqpstore_server.broker.rights.permissions import ALL, Access
from amqpstore_server.protocol import methods
from amqpstore_server.protocol.content import (
    BasicProperties,
    encode_properties,
)
from amqpstore_server.protocol.frames import header_frame, method_frame
from amqpstore_server.protocol.methods import Method
from tests.content_header import encode_content_header
from tests.format.document import table
from tests.fuzz.simulated import USER, SimulatedClient, SimulatedServer


def access(configure: str = "", write: str = "", read: str = "", **topic: Any) -> Access:
    row = {"configure": configure, "write": write, "read": read, "topic": topic}
    return Access("ann", "/a", row)


def is_granted(access: Access, permission: str, name: str, kind: str = "queue") -> bool:
    try:
        access.check(permission, kind, name)
    except AccessRefusedError:
        return False
    return True


# Patterns.


@pytest.mark.parametrize(
    ("pattern", "name", "granted"),
    [
        (".*", "orders", True),
        ("", "orders", False),
        ("^$", "orders", False),
        ("", "", True),
        ("rder", "orders", True),
        ("^rder", "orders", False),
        ("^(a|b)$", "b", True),
        ("^(a|b)$", "ab", False),
        ("^orders", "orders.eu", True),
        ("ORDERS", "orders", False),
    ],
)
@pytest.mark.parametrize("permission", ["configure", "write", "read"])
def test_a_pattern_matches_anywhere_and_the_empty_one_the_empty_name(
    permission: str, pattern: str, name: str, granted: bool
) -> None:
    found = access(**{permission: pattern})
    for _ in range(2):
        assert is_granted(found, permission, name) == granted


def test_each_permission_has_its_own_pattern() -> None:
    found = access("^c", "^w", "^r")
    for permission, first in (("configure", "c"), ("write", "w"), ("read", "r")):
        for name in ("c1", "w1", "r1"):
            assert is_granted(found, permission, name) == name.startswith(first)


def test_the_default_exchange_has_a_name_of_its_own_in_patterns() -> None:
    found = access(write=r"^amq\.default$")
    assert is_granted(found, "write", "", "exchange")
    assert not is_granted(access(write="^x$"), "write", "", "exchange")
    assert not is_granted(access(write=""), "write", "", "exchange")


def test_what_the_default_exchange_is_granted_a_queue_is_not() -> None:
    found = access(write=r"^amq\.default$")
    assert is_granted(found, "write", "", "exchange")
    assert not is_granted(found, "write", "", "queue")


def test_any_permission_on_the_default_exchange_lets_it_be_known() -> None:
    access(write=r"^amq\.default$").check_any("exchange", "")


@pytest.mark.parametrize("permission", ["configure", "write", "read"])
def test_any_permission_is_enough_to_know_that_something_is_there(permission: str) -> None:
    access(**{permission: "^orders$"}).check_any("queue", "orders")
    with pytest.raises(AccessRefusedError):
        access(**{permission: "^orders$"}).check_any("queue", "audit")


def test_what_was_granted_is_remembered_within_bounds() -> None:
    found = access(read=".*")
    for number in range(10_000):
        found.check("read", "queue", f"q{number}")
    assert len(found._granted) <= 4096
    assert not is_granted(found, "write", "q9999")


def test_topics_are_limited_only_where_it_is_said() -> None:
    found = access(events={"write": "^{username}[.]", "read": "^(all|{vhost})"})
    assert found.has_topics
    found.check_topic("write", "events", "ann.created")
    found.check_topic("read", "events", "all.created")
    found.check_topic("read", "events", "/a.created")
    found.check_topic("write", "other", "anything")
    for permission, key in (("write", "bob.created"), ("read", "ann.created"), ("write", "")):
        with pytest.raises(AccessRefusedError):
            found.check_topic(permission, "events", key)
    assert not access().has_topics


def test_a_change_leaves_nothing_of_the_limits_on_topics_that_were() -> None:
    found = access(".*", ".*", ".*", events={"write": "^a"}, old={"write": "^a", "read": "^a"})
    found.change({**ALL, "topic": {"events": {"write": "^b"}}})
    found.check_topic("write", "events", "b")
    found.check_topic("write", "old", "b")
    found.check_topic("read", "old", "b")
    with pytest.raises(AccessRefusedError):
        found.check_topic("write", "events", "a")
    found.change(ALL)
    found.check_topic("write", "events", "c")
    assert not found.has_topics


def test_names_that_stand_in_a_pattern_are_text() -> None:
    row = {**ALL, "topic": {"e": {"write": "^{username}$", "read": ""}}}
    found = Access("a.b", "/", row)
    found.check_topic("write", "e", "a.b")
    with pytest.raises(AccessRefusedError):
        found.check_topic("write", "e", "axb")
    found.check_topic("read", "e", "")
    with pytest.raises(AccessRefusedError):
        found.check_topic("read", "e", "a")


# The matrix: each method, and the permissions that it needs, as (permission, name).

DEAD_LETTERS: dict[str, Any] = {"x-dead-letter-exchange": "dlx"}
ALTERNATE: dict[str, Any] = {"alternate-exchange": "alt"}

MATRIX: dict[str, tuple[Method, list[tuple[str, str]]]] = {
    "exchange.declare": (
        methods.ExchangeDeclare(exchange="new", type="fanout"),
        [("configure", "new")],
    ),
    "exchange.declare with an alternate exchange": (
        methods.ExchangeDeclare(exchange="new", type="fanout", arguments=ALTERNATE),
        [("configure", "new"), ("write", "alt"), ("read", "new")],
    ),
    "exchange.declare with the default exchange as alternate": (
        methods.ExchangeDeclare(
            exchange="new", type="fanout", arguments={**ALTERNATE, "alternate-exchange": ""}
        ),
        [("configure", "new"), ("write", "amq.default"), ("read", "new")],
    ),
    "exchange.delete": (methods.ExchangeDelete(exchange="e"), [("configure", "e")]),
    "exchange.bind": (
        methods.ExchangeBind(destination="e2", source="e", routing_key=""),
        [("write", "e2"), ("read", "e")],
    ),
    "exchange.unbind": (
        methods.ExchangeUnbind(destination="e2", source="e", routing_key=""),
        [("write", "e2"), ("read", "e")],
    ),
    "queue.declare": (methods.QueueDeclare(queue="new"), [("configure", "new")]),
    "queue.declare with dead letters": (
        methods.QueueDeclare(queue="new", arguments=DEAD_LETTERS),
        [("configure", "new"), ("write", "dlx"), ("read", "new")],
    ),
    "queue.declare with dead letters to the default exchange": (
        methods.QueueDeclare(queue="new", arguments={**DEAD_LETTERS, "x-dead-letter-exchange": ""}),
        [("configure", "new"), ("write", "amq.default"), ("read", "new")],
    ),
    "queue.declare with dead letters, of a queue that the server names": (
        methods.QueueDeclare(queue="", arguments=DEAD_LETTERS),
        [("configure", "amq.gen-"), ("write", "dlx"), ("read", "amq.gen-")],
    ),
    "queue.delete": (methods.QueueDelete(queue="q"), [("configure", "q")]),
    "queue.bind": (
        methods.QueueBind(queue="q", exchange="e", routing_key=""),
        [("write", "q"), ("read", "e")],
    ),
    "queue.unbind": (
        methods.QueueUnbind(queue="q", exchange="e", routing_key=""),
        [("write", "q"), ("read", "e")],
    ),
    "queue.purge": (methods.QueuePurge(queue="q"), [("read", "q")]),
    "basic.get": (methods.BasicGet(queue="q"), [("read", "q")]),
    "basic.consume": (methods.BasicConsume(queue="q", consumer_tag="t"), [("read", "q")]),
    "basic.publish": (methods.BasicPublish(exchange="e", routing_key=""), [("write", "e")]),
    "basic.publish to the default exchange": (
        methods.BasicPublish(exchange="", routing_key="q"),
        [("write", "amq.default")],
    ),
    "basic.publish of a replay": (
        methods.BasicPublish(exchange="amq.replay", routing_key="q"),
        [("write", "amq.replay"), ("write", "amq.default"), ("read", "q")],
    ),
}


def patterns_of(needed: list[tuple[str, str]]) -> dict[str, str]:
    """The least that grants all of these."""
    names: dict[str, list[str]] = {kind: [] for kind in ALL}
    for permission, name in needed:
        names[permission].append(name.replace(".", "[.]"))
    return {kind: f"^({'|'.join(some)})$" if some else "" for kind, some in names.items()}


def is_refused(method: Method, patterns: dict[str, str]) -> bool:
    """Tell whether a method is answered with 403, for a user with these permissions."""
    with SimulatedServer() as server:
        owner = SimulatedClient.opened(server, channels=1)
        for name in ("e", "e2"):
            owner.ask(1, methods.ExchangeDeclare(exchange=name, type="fanout"))
        owner.ask(1, methods.QueueDeclare(queue="q"))
        server.broker.define_permissions(USER, "/", patterns)
        client = SimulatedClient.opened(server, channels=1)
        if isinstance(method, methods.BasicPublish):
            header = encode_content_header(60, 0, encode_properties(BasicProperties()))
            frame = b"\x02\0\x01" + len(header).to_bytes(4, "big") + header + b"\xce"
            client.send(method_frame(1, method.encode()) + frame)
        else:
            client.ask(1, method)
        closes = (methods.ChannelClose, methods.ConnectionClose)
        codes = {one.method.reply_code for one in client.answers if isinstance(one.method, closes)}
        assert codes <= {403}
        return bool(codes)


@pytest.mark.parametrize("what", MATRIX)
def test_a_method_needs_these_permissions_and_no_others(what: str) -> None:
    method, needed = MATRIX[what]
    assert not is_refused(method, patterns_of(needed))
    for left_out in needed:
        assert is_refused(method, patterns_of([one for one in needed if one != left_out]))


def test_the_matrix_of_the_document_is_this_one() -> None:
    path = Path(__file__).parents[3] / "server" / "PROTOCOL.md"
    rows = [row.cells for row in table(path.read_text("utf-8"), "Permissions")]
    found = {row["method"]: {kind for kind in ALL if row[kind]} for row in rows}
    assert found == {what: {kind for kind, _ in needed} for what, (_, needed) in MATRIX.items()}


@pytest.mark.parametrize("permission", ["configure", "write", "read"])
@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare(queue="q", passive=True),
        methods.ExchangeDeclare(exchange="e", type="fanout", passive=True),
    ],
    ids=["queue", "exchange"],
)
def test_a_passive_declare_needs_any_permission(method: Method, permission: str) -> None:
    assert not is_refused(method, {**dict.fromkeys(ALL, ""), permission: "^(q|e)$"})
    assert is_refused(method, {**dict.fromkeys(ALL, ""), permission: "^other$"})


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare(queue="sec\nret"),
        methods.ExchangeDeclare(exchange="sec\rret", type="fanout"),
    ],
    ids=["queue", "exchange"],
)
def test_a_name_is_checked_as_it_is_without_line_ends(method: Method) -> None:
    assert is_refused(method, {**ALL, "configure": "^(s[^e]|[^s])"})


@pytest.mark.parametrize("kind", ["topic", "x-delayed-message"])
@pytest.mark.parametrize(
    ("key", "headers", "refused"),
    [
        ("guest.a", {}, False),
        ("other.a", {}, True),
        ("guest.a", {"CC": ["guest.b"], "BCC": ["guest.c"]}, False),
        ("guest.a", {"CC": ["guest.b", "other.a"]}, True),
        ("guest.a", {"BCC": ["other.a"]}, True),
    ],
)
def test_every_routing_key_is_checked_at_a_topic_exchange(
    kind: str, key: str, headers: dict[str, Any], refused: bool
) -> None:
    with SimulatedServer() as server:
        owner = SimulatedClient.opened(server, channels=1)
        arguments: dict[str, Any] = {"x-delayed-type": "topic"} if kind != "topic" else {}
        owner.ask(1, methods.ExchangeDeclare(exchange="e", type=kind, arguments=arguments))
        topic = {"e": {"write": "^{username}[.]", "read": ".*"}}
        server.broker.define_permissions(USER, "/", {**ALL, "topic": topic})
        client = SimulatedClient.opened(server, channels=1)
        properties = encode_properties(BasicProperties(headers=headers))
        publish = methods.BasicPublish(exchange="e", routing_key=key)
        header = header_frame(1, encode_content_header(60, 0, properties))
        client.send(method_frame(1, publish.encode()) + header)
        assert bool(client.answers) == refused
        if refused:
            (answer,) = client.answers
            assert isinstance(answer.method, methods.ChannelClose)
            assert answer.method.reply_code == 403
