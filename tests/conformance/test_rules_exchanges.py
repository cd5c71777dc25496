"""Exchanges, bindings and routing (rules C; 0-9-1 section 3.1.3, class exchange)."""

from collections import Counter
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import BasicProperties

from tests.conformance.topology import (
    bodies,
    bound,
    confirming,
    exchange,
    get_soon,
    has_route,
    headers,
    publish_keys,
    queue,
    texts,
    unique,
)
from tests.interop.pika_client import (
    channel_closed_with,
    connection_closed_with,
    drain,
    settle,
    wait_until,
)

PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.match": "headers",
    "amq.headers": "headers",
}


@pytest.mark.parametrize(("name", "kind"), PREDECLARED.items())
def test_every_standard_type_has_a_predeclared_exchange(
    channel: BlockingChannel, name: str, kind: str
) -> None:
    """C030, C131, C132, C13: durable, and of that type."""
    channel.exchange_declare(name, passive=True)
    channel.exchange_declare(name, kind, durable=True)


@pytest.mark.parametrize("name", [*PREDECLARED, ""])
def test_a_predeclared_exchange_cannot_be_deleted(channel: BlockingChannel, name: str) -> None:
    """A13, C032: 403."""
    with channel_closed_with(403):
        channel.exchange_delete(name)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (
            "param.#",
            ["param", "param.test", "param.value", "param.test.child"],
            ["param1.test", "", "xparam", "test.param"],
        ),
        (
            "param.*.*",
            ["param.test.test", "param.test.value", "param.test.child"],
            ["param", "param.test", "parm.child", "param.a.b.c"],
        ),
        (
            "param.*.value",
            ["param.value.value", "param.test.value"],
            ["param.value", "param.value.child"],
        ),
        ("STOCK.USD.*", ["STOCK.USD.IBM"], ["STOCK.USD", "STOCK.EUR.IBM", "stock.usd.ibm"]),
        ("*.stock.#", ["usd.stock", "eur.stock.db"], ["stock.nasdaq", "stock"]),
        ("#", ["", "a", "a.b.c", ".", "a..b"], []),
        ("*", ["a", "word"], ["a.b"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a..b"], ["a", "b", "a.b.c"]),
        ("#.#", ["a", "a.b"], []),
        ("#.a.#", ["a", "x.a", "a.x", "x.a.y"], ["b", "x.y"]),
        ("a.*.b", ["a..b"], ["a.b"]),
        ("a*.b", ["a*.b"], ["ab.b", "a.b"]),
        ("a#", ["a#"], ["a", "ab"]),
        ("exact.key", ["exact.key"], ["exact.keys", "exact", "exact.key."]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_topic_patterns_match_words(
    channel: BlockingChannel, pattern: str, matching: list[str], other: list[str]
) -> None:
    """C06 to C12, C130: `*` is one word, `#` any number of them, none included."""
    topic = exchange(channel, "topic")
    name = bound(channel, topic, pattern)
    publish_keys(channel, topic, [*other, *matching])
    assert texts(channel, name) == matching


def test_a_topic_subscription_on_the_predeclared_exchange(channel: BlockingChannel) -> None:
    """C12: the model's own example."""
    name = queue(channel)
    prefix = unique("STOCK")
    channel.queue_bind(name, "amq.topic", f"{prefix}.USD.*")
    publish_keys(channel, "amq.topic", [f"{prefix}.USD.IBM", f"{prefix}.EUR.IBM"])
    assert texts(channel, name) == [f"{prefix}.USD.IBM"]


def test_overlapping_topic_bindings_deliver_once_and_unbind_apart(
    channel: BlockingChannel,
) -> None:
    """C22, C057."""
    topic = exchange(channel, "topic")
    name = bound(channel, topic, "a.*", "a.#", "#", "a.b")
    channel.basic_publish(topic, "a.b", b"four match")
    assert bodies(channel, name) == [b"four match"]
    for pattern in ("a.*", "a.#", "#"):
        channel.queue_unbind(name, topic, pattern)
    publish_keys(channel, topic, ["a.c", "a.b"])
    assert texts(channel, name) == ["a.b"]


@pytest.mark.usefixtures("ours_alone")
def test_many_wildcards_in_a_row_cost_no_combinations(channel: BlockingChannel) -> None:
    """C06: a pattern of 40 wildcards against a key of 120 words is one message's work."""
    topic = exchange(channel, "topic")
    name = bound(channel, topic, ".".join(["#", "*"] * 20 + ["#", "z"]), ".".join(["#"] * 100))
    key = ".".join("a" * 120)
    for _ in range(20):
        channel.basic_publish(topic, key, b"x")
    assert bodies(channel, name) == [b"x"] * 20


def match(
    channel: BlockingChannel, arguments: dict[str, Any], *tables: dict[str, Any] | None
) -> list[int]:
    """Return which of the headers reach a queue bound with the arguments."""
    source = exchange(channel, "headers")
    name = bound(channel, source, arguments=arguments)
    for number, fields in enumerate(tables):
        properties = BasicProperties(headers=fields)
        channel.basic_publish(source, "any key", str(number).encode(), properties)
    return [int(text) for text in texts(channel, name)]


@pytest.mark.parametrize("x_match", [{"x-match": "all"}, {}], ids=["all", "default"])
def test_headers_all_needs_every_pair(channel: BlockingChannel, x_match: dict[str, object]) -> None:
    """C14: and all is what an absent x-match means."""
    arguments = {**x_match, "format": "pdf", "pages": 3}
    found = match(
        channel,
        arguments,
        {"format": "pdf", "pages": 3},
        {"format": "pdf", "pages": 3, "more": True},
        {"format": "pdf"},
        {"format": "pdf", "pages": 4},
        {},
        None,
    )
    assert found == [0, 1]


def test_headers_any_needs_one_pair(channel: BlockingChannel) -> None:
    """C14, C17."""
    found = match(
        channel,
        {"x-match": "any", "format": "pdf", "pages": 3},
        {"format": "pdf"},
        {"format": "txt", "pages": 3},
        {"format": "txt", "pages": 4},
        None,
    )
    assert found == [0, 1]


def test_headers_without_pairs_match_all_and_not_any(channel: BlockingChannel) -> None:
    """C14: of no pairs all are there, and not one."""
    assert match(channel, {"x-match": "all"}, {"a": 1}, None) == [0, 1]
    assert match(channel, {"x-match": "any"}, {"a": 1}, None) == []


def test_a_headers_pair_without_value_asks_for_presence(channel: BlockingChannel) -> None:
    """C15."""
    found = match(channel, {"x-match": "all", "id": None}, {"id": "x"}, {"id": 5}, {"other": "x"})
    assert found == [0, 1]


def test_headers_of_other_types_are_not_equal(channel: BlockingChannel) -> None:
    """C15: text is not a number."""
    assert match(channel, {"x-match": "all", "n": 1}, {"n": 1}, {"n": "1"}, {"n": 2}) == [0]


def test_headers_pairs_that_start_with_x_are_ignored(channel: BlockingChannel) -> None:
    """C16."""
    found = match(channel, {"x-match": "all", "x-kind": "b", "a": 1}, {"a": 1}, {"x-kind": "b"})
    assert found == [0]


def test_headers_with_x_counts_pairs_that_start_with_x(channel: BlockingChannel) -> None:
    """C14, C16: all-with-x and any-with-x."""
    arguments = {"x-kind": "b", "a": 1}
    tables: tuple[dict[str, Any], ...] = (
        {"a": 1},
        {"x-kind": "b"},
        {"a": 1, "x-kind": "b"},
        {"x-kind": "c"},
    )
    assert match(channel, {"x-match": "all-with-x", **arguments}, *tables) == [2]
    assert match(channel, {"x-match": "any-with-x", **arguments}, *tables) == [0, 1, 2]


@pytest.mark.parametrize("x_match", ["some", "", 1], ids=repr)
def test_another_x_match_is_refused(channel: BlockingChannel, x_match: object) -> None:
    """C14: 406, when it is bound."""
    with channel_closed_with(406):
        bound(channel, "amq.headers", arguments={"x-match": x_match})


def test_headers_bindings_differ_by_their_arguments(channel: BlockingChannel) -> None:
    """C23, C056: the same queue and key with other arguments is another binding."""
    source = exchange(channel, "headers")
    name = bound(channel, source, arguments={"x-match": "all", "a": 1})
    channel.queue_bind(name, source, "", arguments={"x-match": "all", "b": 1})
    channel.queue_unbind(name, source, "", arguments={"x-match": "all", "a": 1})
    for fields in ({"a": 1}, {"b": 1}):
        channel.basic_publish(source, "", b"", BasicProperties(headers=fields))
    assert [headers(message.properties) for message in drain(channel, name)] == [{"b": 1}]


def test_a_bound_exchange_passes_messages_on(channel: BlockingChannel) -> None:
    """C21: each exchange routes by its own type and bindings."""
    source, middle = exchange(channel, "topic"), exchange(channel, "direct")
    channel.exchange_bind(middle, source, "order.*")
    name = bound(channel, middle, "order.new")
    publish_keys(channel, source, ["order.new", "order.old", "other"])
    assert texts(channel, name) == ["order.new"]


def test_an_unbound_exchange_gets_nothing_more(channel: BlockingChannel) -> None:
    """C21: exchange.unbind, which like exchange.bind may be repeated."""
    source, target = exchange(channel, "fanout"), exchange(channel, "fanout")
    name = bound(channel, target)
    for _ in range(2):
        channel.exchange_bind(target, source, "")
    channel.basic_publish(source, "", b"bound")
    for _ in range(2):
        channel.exchange_unbind(target, source, "")
    channel.basic_publish(source, "", b"unbound")
    assert bodies(channel, name) == [b"bound"]


def test_a_cycle_of_exchanges_ends_and_delivers_once(channel: BlockingChannel) -> None:
    """C21: however many ways lead to a queue."""
    first, second, third = (exchange(channel, "fanout") for _ in range(3))
    for target, source in ((second, first), (third, second), (first, third), (third, first)):
        channel.exchange_bind(target, source, "")
    channel.exchange_bind(first, first, "")
    name = bound(channel, third)
    channel.queue_bind(name, first, "")
    channel.basic_publish(first, "", b"once")
    assert bodies(channel, name) == [b"once"]


@pytest.mark.parametrize("end", ["source", "destination"])
def test_binding_a_missing_exchange_is_404(channel: BlockingChannel, end: str) -> None:
    """C21."""
    ends = {"source": "amq.fanout", "destination": "amq.fanout", end: unique()}
    with channel_closed_with(404):
        channel.exchange_bind(ends["destination"], ends["source"], "")


@pytest.mark.parametrize("end", ["source", "destination"])
def test_the_default_exchange_takes_no_exchange_bindings(
    channel: BlockingChannel, end: str
) -> None:
    """C03, C032: 403."""
    ends = {"source": "amq.fanout", "destination": "amq.fanout", end: ""}
    with channel_closed_with(403):
        channel.exchange_bind(ends["destination"], ends["source"], "")


def test_a_deleted_exchange_is_bound_no_more(channel: BlockingChannel) -> None:
    """C29: as destination and as source."""
    source, target = unique(), exchange(channel, "fanout")
    channel.exchange_declare(source, "fanout")
    name = bound(channel, target)
    channel.exchange_bind(target, source, "")
    channel.exchange_delete(source)
    channel.exchange_declare(source, "fanout")
    channel.basic_publish(source, "", b"to nobody")
    channel.exchange_bind(target, source, "")
    channel.basic_publish(source, "", b"bound again")
    assert bodies(channel, name) == [b"bound again"]
    channel.exchange_delete(target)
    channel.basic_publish(source, "", b"to nobody")
    assert bodies(channel, name) == []


def test_an_auto_delete_exchange_goes_with_its_last_exchange_binding(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """C26: a destination is a binding as well as a queue."""
    source = unique()
    channel.exchange_declare(source, "fanout", auto_delete=True)
    target = exchange(channel, "fanout")
    channel.exchange_bind(target, source, "")
    channel.exchange_declare(source, passive=True)
    channel.exchange_unbind(target, source, "")
    with channel_closed_with(404):
        channel.exchange_declare(source, passive=True)


def test_unbinding_from_what_is_missing_succeeds(channel: BlockingChannel) -> None:
    """C068, C069: as in RabbitMQ, an unbind says that there is to be no such binding."""
    channel.queue_unbind(queue(channel), unique(), "key")
    channel.queue_unbind(unique(), "amq.direct", "key")
    channel.exchange_unbind("amq.direct", unique(), "key")
    channel.exchange_unbind(unique(), "amq.direct", "key")
    settle(channel)


def test_an_internal_exchange_takes_bindings_but_no_publishes(channel: BlockingChannel) -> None:
    """C099: 403."""
    source = exchange(channel, "fanout")
    internal = exchange(channel, "fanout", internal=True)
    channel.exchange_bind(internal, source, "")
    name = bound(channel, internal)
    channel.basic_publish(source, "", b"through")
    assert bodies(channel, name) == [b"through"]
    with channel_closed_with(403):
        channel.basic_publish(internal, "", b"refused")
        settle(channel)


def test_unroutable_messages_go_to_the_alternate_exchange(channel: BlockingChannel) -> None:
    """C33, C36: with their own exchange and routing key, and only they."""
    alternate = exchange(channel, "fanout")
    rest = bound(channel, alternate)
    main = exchange(channel, "direct", {"alternate-exchange": alternate})
    name = bound(channel, main, "known")
    publish_keys(channel, main, ["known", "unknown"])
    assert texts(channel, name) == ["known"]
    [message] = drain(channel, rest)
    assert (message.body, message.exchange, message.routing_key) == (b"unknown", main, "unknown")


def test_a_message_that_the_alternate_routed_is_not_returned(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """C34."""
    alternate = exchange(channel, "fanout")
    main = exchange(channel, "direct", {"alternate-exchange": alternate})
    confirms = confirming(connection)
    rest = bound(channel, alternate)
    confirms.basic_publish(main, "unknown", b"", mandatory=True)
    channel.queue_delete(rest)
    with pytest.raises(pika.exceptions.UnroutableError):
        confirms.basic_publish(main, "unknown", b"", mandatory=True)


def test_a_missing_alternate_exchange_loses_the_message_only(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """C35."""
    main = exchange(channel, "direct", {"alternate-exchange": unique()})
    name = bound(channel, main, "known")
    confirming(connection).basic_publish(main, "unknown", b"")
    publish_keys(channel, main, ["unknown", "known"])
    assert texts(channel, name) == ["known"]


def test_a_chain_of_alternates_ends(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """C34, C35: a loop of them is cut, and the message returned when that was asked for."""
    first, second, third = unique(), unique(), unique()
    for name, alternate in ((first, second), (second, third), (third, first)):
        channel.exchange_declare(name, "direct", arguments={"alternate-exchange": alternate})
    confirms = confirming(connection)
    with pytest.raises(pika.exceptions.UnroutableError):
        confirms.basic_publish(first, "key", b"", mandatory=True)
    name = bound(channel, third, "key")
    confirms.basic_publish(first, "key", b"at the end", mandatory=True)
    assert bodies(channel, name) == [b"at the end"]


def test_cc_and_bcc_add_routing_keys(channel: BlockingChannel) -> None:
    """C38, C125: BCC is gone before delivery, CC is not."""
    target = exchange(channel, "direct")
    queues = {key: bound(channel, target, key) for key in ("to", "cc", "bcc", "other")}
    fields: dict[str, Any] = {"CC": ["cc", "to"], "BCC": ["bcc"], "kept": 1}
    channel.basic_publish(target, "to", b"x", BasicProperties(headers=fields))
    for key, name in queues.items():
        messages = drain(channel, name)
        assert len(messages) == (key != "other"), key
        for message in messages:
            assert headers(message.properties) == {"CC": ["cc", "to"], "kept": 1}
            assert message.routing_key == "to"


def test_cc_on_the_default_exchange_names_queues(channel: BlockingChannel) -> None:
    """C38."""
    first, second = queue(channel), queue(channel)
    channel.basic_publish("", first, b"x", BasicProperties(headers={"CC": [second]}))
    assert bodies(channel, first) == bodies(channel, second) == [b"x"]


def test_a_cc_that_is_no_list_is_refused(channel: BlockingChannel) -> None:
    """C38: 406."""
    with channel_closed_with(406):
        channel.basic_publish("", queue(channel), b"", BasicProperties(headers={"CC": "text"}))
        settle(channel)


def test_a_message_in_several_queues_is_the_same_in_each(channel: BlockingChannel) -> None:
    """C32, E06: body, properties, exchange and routing key."""
    source = exchange(channel, "fanout")
    names = [bound(channel, source) for _ in range(3)]
    properties = BasicProperties(content_type="text/plain", headers={"a": [1, "two"]})
    channel.basic_publish(source, "key", b"body", properties)
    seen = [drain(channel, name) for name in names]
    for [message] in seen:
        assert (message.body, message.exchange, message.routing_key) == (b"body", source, "key")
        assert message.properties.content_type == "text/plain"
        assert headers(message.properties) == {"a": [1, "two"]}


def test_an_exchange_without_bindings_takes_and_drops(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """A01, C25, C37: what is bound later gets nothing of it."""
    source = exchange(channel, "fanout")
    confirming(connection).basic_publish(source, "", b"dropped")
    assert bodies(channel, bound(channel, source)) == []


@pytest.mark.parametrize("kind", ["system", "x-unheard-of", "Direct", ""])
def test_a_type_that_is_not_there_is_503(channel: BlockingChannel, kind: str) -> None:
    """A04, C18, C19, C038."""
    with connection_closed_with(503):
        channel.exchange_declare(unique(), kind)


def test_an_exchange_name_may_be_of_any_characters(channel: BlockingChannel) -> None:
    """C036: as in RabbitMQ, the specification's alphabet is not enforced."""
    for name in (f"{unique()} with space/äöü☃", unique() + "x" * 200):
        channel.exchange_declare(name, "direct", auto_delete=True)
        queue_name = bound(channel, name, "key")
        channel.basic_publish(name, "key", b"x")
        assert bodies(channel, queue_name) == [b"x"]


def test_sixteen_exchanges_and_many_bindings(channel: BlockingChannel) -> None:
    """C034, C060: and far more than the specification's least."""
    name = queue(channel)
    sources = [exchange(channel, "direct") for _ in range(64)]
    for source in sources:
        for key in range(8):
            channel.queue_bind(name, source, str(key))
    for source in sources:
        channel.basic_publish(source, "7", b"x")
    assert len(bodies(channel, name)) == len(sources)


def test_redeclaring_with_another_type_is_406(channel: BlockingChannel) -> None:
    """C037, C040, C27: the specification says 530, RabbitMQ 406."""
    name = exchange(channel, "direct")
    channel.exchange_declare(name, "direct")
    with channel_closed_with(406):
        channel.exchange_declare(name, "topic")


def test_x_consistent_hash_sends_a_key_to_one_queue_always(channel: BlockingChannel) -> None:
    """C19, A22: and spreads the keys over the queues."""
    source = exchange(channel, "x-consistent-hash")
    names = [bound(channel, source, "10") for _ in range(3)]
    keys = [f"key {number}" for number in range(300)]
    publish_keys(channel, source, keys * 2)
    seen = [Counter(texts(channel, name)) for name in names]
    assert sum(seen, Counter()) == Counter(keys * 2)
    for counter in seen:
        assert len(counter) > 30
        assert set(counter.values()) == {2}


def test_x_consistent_hash_weighs_its_bindings(channel: BlockingChannel) -> None:
    """C19: the binding's routing key is its weight; by a header where that is asked for."""
    source = exchange(channel, "x-consistent-hash", {"hash-header": "customer"})
    light, heavy = bound(channel, source, "1"), bound(channel, source, "9")
    for number in range(300):
        properties = BasicProperties(headers={"customer": f"c{number}"})
        channel.basic_publish(source, "same", b"x", properties)
    counts = [len(bodies(channel, name)) for name in (light, heavy)]
    assert sum(counts) == 300
    assert counts[1] > 2 * counts[0]


@pytest.mark.parametrize("weight", ["0", "-1", "heavy", ""])
def test_x_consistent_hash_refuses_what_is_no_weight(channel: BlockingChannel, weight: str) -> None:
    """C19: 406."""
    source = exchange(channel, "x-consistent-hash")
    with channel_closed_with(406):
        bound(channel, source, weight)


def test_x_random_sends_to_one_queue_of_all(channel: BlockingChannel) -> None:
    """C19."""
    source = exchange(channel, "x-random")
    names = [bound(channel, source) for _ in range(3)]
    for number in range(300):
        channel.basic_publish(source, "", str(number).encode())
    seen = [texts(channel, name) for name in names]
    everything = sorted((text for part in seen for text in part), key=int)
    assert everything == [str(number) for number in range(300)]
    assert all(seen)


def test_x_recent_history_gives_new_bindings_the_last_messages(channel: BlockingChannel) -> None:
    """C19: oldest first, the last 20 unless it says otherwise, and then all that come."""
    source = exchange(channel, "x-recent-history", {"x-recent-history-length": 3})
    plain = exchange(channel, "x-recent-history")
    for number in range(30):
        channel.basic_publish(source, "", str(number).encode())
        channel.basic_publish(plain, "", str(number).encode())
    name, name_of_plain = bound(channel, source), bound(channel, plain)
    channel.basic_publish(source, "", b"new")
    wait_until(channel, lambda: has_messages(channel, name_of_plain, 20))
    wait_until(channel, lambda: has_messages(channel, name, 4))
    assert sorted(texts(channel, name)) == ["27", "28", "29", "new"]
    assert sorted(texts(channel, name_of_plain)) == sorted(str(n) for n in range(10, 30))


def has_messages(channel: BlockingChannel, name: str, count: int) -> bool:
    return channel.queue_declare(name, passive=True).method.message_count == count


@pytest.mark.usefixtures("ours_alone")
def test_x_delayed_message_routes_when_the_delay_is_over(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """C19, H15: by the type that x-delayed-type names, the shortest delay first."""
    source = exchange(channel, "x-delayed-message", {"x-delayed-type": "topic"})
    name = bound(channel, source, "a.*")
    for key, delay_ms in (("a.late", 600), ("a.soon", 200), ("b.none", 0)):
        properties = BasicProperties(headers={"x-delay": delay_ms})
        channel.basic_publish(source, key, key.encode(), properties)
    channel.basic_publish(source, "a.now", b"a.now")
    assert get_soon(channel, name).body == b"a.now"
    wait_until(channel, lambda: has_messages(channel, name, 2))
    assert texts(channel, name) == ["a.soon", "a.late"]


def test_the_queue_of_an_exchange_is_found_by_its_name(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """C03, C04, C044, C129: a queue is bound to the default exchange as long as it exists."""
    confirms = confirming(connection)
    name = queue(channel)
    assert has_route(confirms, name)
    channel.queue_delete(name)
    assert not has_route(confirms, name)
