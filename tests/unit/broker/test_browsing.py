"""A queue is browsed page by page: nothing is consumed, and nothing changes."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from amqpstore import Envelope, Message, MessageDamagedError, Run
from amqpstore_server.administration.changes import AdministrationError, MissingError
from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError
from amqpstore_server.broker.messages.filters import Matcher, MessageFilter
from amqpstore_server.broker.queues import browsing
from amqpstore_server.protocol import bounds
from amqpstore_server.protocol.field_table import Timestamp
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.operator import Operator
from tests.unit.broker.simulated import Client

ALL: dict[str, Any] = {}


@pytest.fixture
def broker() -> Iterator[SimulatedBroker]:
    simulated = SimulatedBroker()
    yield simulated
    simulated.store.abandon()


@pytest.fixture
def client(broker: SimulatedBroker) -> Client:
    return Client(broker)


@pytest.fixture
def operator(broker: SimulatedBroker) -> Operator:
    return Operator(broker)


def test_pages_show_everything_in_order_and_change_nothing(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("orders")
    client.publish("", "orders", *map(str, range(25)))
    broker.settle()
    page = operator.page("orders", limit=10)
    assert [row["payload"] for row in page["messages"]] == [str(one) for one in range(10)]
    assert (page["ready"], page["unacked"], page["next"]) == (25, 0, "11")
    first = page["messages"][0]
    assert first == {
        "position": "1",
        "state": "ready",
        "redelivered": False,
        "delivery_count": 0,
        "exchange": "",
        "routing_key": "orders",
        "properties": {"delivery_mode": 2},
        "payload": "0",
        "payload_encoding": "string",
        "payload_bytes": 1,
        "truncated": False,
    }
    assert operator.sees("orders", limit=7) == [str(one) for one in range(25)]
    assert operator.page("orders", offset=20, limit=3)["messages"][0]["payload"] == "20"
    assert operator.page("orders", offset=99)["messages"] == []
    assert operator.page("orders", start=24)["messages"][0]["payload"] == "23"
    assert broker.ready("orders") == [str(one) for one in range(25)]
    client.consume("orders", "tag", prefetch=1)
    broker.settle()
    assert client.redelivered == [False]


def test_a_cursor_stays_valid_while_the_queue_changes(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("orders")
    client.publish("", "orders", "a", "b", "c", "d", "e")
    broker.settle()
    following = operator.page("orders", limit=3)["next"]
    for body in ("a", "b", "c", "d"):
        assert client.get("orders") == body
        client.ack(body)
    client.publish("", "orders", "f")
    broker.settle()
    assert operator.sees("orders", start=following) == ["e", "f"]


def test_unacked_messages_are_shown_as_such_in_their_places(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("orders")
    client.publish("", "orders", *"abcdefg")
    broker.settle()
    consumer = Client(broker)
    for _ in range(3):
        consumer.get("orders")
    consumer.requeue("b")
    broker.settle()
    assert operator.sees("orders") == ["[a]", "b", "[c]", "d", "e", "f", "g"]
    assert operator.sees("orders", limit=2) == ["[a]", "b", "[c]", "d", "e", "f", "g"]
    page = operator.page("orders", limit=2)
    assert (page["ready"], page["unacked"]) == (5, 2)
    assert [row["redelivered"] for row in page["messages"]] == [False, True]
    for _ in range(5):
        consumer.get("orders")
    assert operator.sees("orders", limit=2) == [f"[{one}]" for one in "abcdefg"]
    transacted = Client(broker)
    consumer.channel.recover(requeue=True)
    transacted.channel.select_transactions()
    assert transacted.get("orders") == "a"
    transacted.ack("a")
    assert operator.sees("orders", limit=3)[0] == "[a]"
    transacted.channel.commit()
    broker.settle()
    assert operator.sees("orders") == list("bcdefg")


def test_priorities_are_walked_from_the_highest_to_the_lowest(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("orders", max_priority=9)
    for body, priority in (("a", 0), ("b", 5), ("c", 9), ("d", 5), ("e", 0)):
        client.publish("", "orders", body, priority=priority)
    broker.settle()
    assert operator.sees("orders", limit=1) == ["c", "b", "d", "a", "e"]
    assert operator.sees("orders", offset=2) == ["d", "a", "e"]
    assert [row["position"] for row in operator.page("orders")["messages"]] == [
        "9:1",
        "5:1",
        "5:2",
        "1",
        "2",
    ]
    assert operator.sees("orders", start="5:2") == ["d", "a", "e"]


FILTERS: tuple[tuple[dict[str, Any], str], ...] = (
    (ALL, "abc"),
    ({"properties": {"message_id": "m-b"}}, "b"),
    ({"properties": {"message-id": {"pattern": "^m-[ab]$"}}}, "ab"),
    ({"properties": {"message_id": {"exists": False}}}, "c"),
    ({"properties": {"message_id": None}}, "c"),
    ({"properties": {"message_id": {"equals": None}}}, "c"),
    ({"properties": {"message_id": {"contains": "m-", "pattern": "b$"}}}, "b"),
    ({"properties": {"timestamp": {"min": 120, "max": 120}}}, "a"),
    ({"properties": {"timestamp": {"min": 120}}}, "ab"),
    ({"properties": {"timestamp": {"pattern": "1"}}}, ""),
    ({"properties": {"priority": {"min": 1}}}, "b"),
    ({"properties": {"type": {"contains": "der"}}}, "a"),
    ({"properties": {"message_id": "m-a"}, "headers": {"n": 2}}, ""),
    ({"properties": {"message_id": "m-c"}, "headers": {"n": 2}}, ""),
    ({"headers": {"n": 1}}, "a"),
    ({"headers": {"n": {"exists": True}}}, "ab"),
    ({"headers": {"n": {"contains": "1"}}}, ""),
    ({"headers": {"n": True}}, ""),
    ({"headers": {"n": {"equals": True}}}, ""),
    ({"headers": {"flag": True}}, "b"),
    ({"headers": {"flag": {"min": 0}}}, ""),
    ({"headers": {"amount": {"min": 1.4, "max": 1.6}}}, "b"),
    ({"routing_key": "orders", "exchange": ""}, "abc"),
    ({"routing_key": {"pattern": "^x"}}, ""),
    ({"exchange": None}, ""),
    ({"body": {"contains": "a"}}, "a"),
    ({"body": {"pattern": "[bc]"}}, "bc"),
    ({"body": {"contains": "b", "pattern": "[bc]"}}, "b"),
    ({"redelivered": False}, "bc"),
    ({"redelivered": True}, "a"),
)


def test_a_filter_means_what_it_says(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("orders")
    headers = {"n": 1}, {"n": 2, "flag": True, "amount": Decimal("1.5")}
    client.publish(
        "", "orders", "a", message_id="m-a", timestamp=120, type="order", headers=headers[0]
    )
    client.publish(
        "", "orders", "b", message_id="m-b", timestamp=170, priority=3, headers=headers[1]
    )
    client.publish("", "orders", "c")
    broker.settle()
    client.get("orders")
    client.requeue("a")
    broker.settle()
    found = [(wanted, "".join(operator.sees("orders", filter=wanted))) for wanted, _ in FILTERS]
    assert found == list(FILTERS)


@pytest.mark.parametrize("condition", [{"contains": "needle"}, {"pattern": "needle$"}])
def test_the_first_mebibyte_of_a_body_is_searched(condition: dict[str, str]) -> None:
    matcher = Matcher(msgspec.convert({"body": condition}, MessageFilter))
    found = [
        matcher.matches(Message(Envelope("", "k", b""), b"\xff" * length + b"needle"))
        for length in (0, (1 << 20) - 6, 1 << 20)
    ]
    assert found == [True, True, False]


@pytest.mark.parametrize(
    "wanted", [{"colour": 1}, {"body": {"equals": "x"}}, {"routing_key": {"is": "x"}}]
)
def test_a_filter_has_no_other_conditions(wanted: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert(wanted, MessageFilter)


def test_a_filter_looks_at_so_many_and_says_where_to_go_on(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("orders")
    client.publish("", "orders", *map(str, range(1000)))
    broker.settle()
    wanted = {"body": {"contains": "999"}}
    page = operator.page("orders", filter=wanted, max_scanned=300)
    assert (page["messages"], page["scanned"], page["next"]) == ([], 300, "301")
    assert operator.sees("orders", filter=wanted, max_scanned=300) == ["999"]


def test_pages_look_at_each_message_once(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    """A page that is full in the middle of a step leaves the rest of the step to the next one."""
    broker.queue("orders")
    client.publish("", "orders", *map(str, range(1000)))
    broker.settle()
    wanted = {"body": {"pattern": "[02468]$"}}
    pages = [operator.page("orders", filter=wanted, limit=70)]
    while pages[-1]["next"] is not None:
        pages.append(operator.page("orders", filter=wanted, limit=70, start=pages[-1]["next"]))
    assert [len(page["messages"]) for page in pages] == [70] * 7 + [10]
    assert sum(page["scanned"] for page in pages) == 1000


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"limit": 0}, "invalid limit: 0 is not from 1 to 1000"),
        ({"offset": -1}, "invalid offset"),
        ({"filter": {"properties": {"colour": 1}}}, "no property 'colour'"),
        ({"filter": {"body": {"pattern": "("}}}, "not a regular expression"),
        ({"filter": {"headers": dict.fromkeys(map(str, range(51)))}}, "more than 50"),
        ({"filter": {"properties": dict.fromkeys(map(str, range(51)))}}, "more than 50"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    broker: SimulatedBroker, operator: Operator, asked: dict[str, Any], said: str
) -> None:
    broker.queue("orders")
    with pytest.raises(AdministrationError, match=said):
        operator.page("orders", **asked)


@pytest.mark.parametrize("text", ["", "x", "-1", "1:2:3", ":1", "٣", "9" * 30])
def test_a_position_is_a_number_or_two(
    broker: SimulatedBroker, operator: Operator, text: str
) -> None:
    broker.queue("orders")
    with pytest.raises(PreconditionFailedError, match="is not the position of a message"):
        operator.page("orders", start=text)


def test_bodies_are_cut_and_what_is_not_text_is_base64(
    broker: SimulatedBroker, client: Client, operator: Operator
) -> None:
    broker.queue("orders")
    client.publish("", "orders", "größe")
    headers = {"at": Timestamp(5), "raw": b"\xff", "deep": {"list": [1, None, float("nan")]}}
    client.publish("", "orders", "x", headers=headers)
    broker.settle()
    cut, other = operator.page("orders", max_payload_bytes=3)["messages"]
    assert (cut["payload"], cut["payload_bytes"], cut["truncated"]) == ("gr", 7, True)
    assert other["properties"]["headers"] == {
        "at": 5,
        "raw": "Not UTF-8, base64 is: /w==",
        "deep": {"list": [1, None, "nan"]},
    }


def test_a_queue_is_browsed_by_whoever_may_read_it(broker: SimulatedBroker) -> None:
    broker.queue("orders")
    row = {"configure": ".*", "write": ".*", "read": "^other$"}
    broker.broker.define_permissions("anna", "/", row)
    anna = Operator(broker, broker.broker.access("anna", "/"))
    with pytest.raises(AccessRefusedError, match="read access to queue 'orders'"):
        anna.page("orders")
    with pytest.raises(MissingError, match="no queue 'gone'"):
        anna.page("gone")


def test_a_message_that_cannot_be_read_is_shown_as_such_and_stays(
    broker: SimulatedBroker,
    client: Client,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.queue("orders", queue_mode="lazy")
    broker.queue("other")
    client.publish("", "orders", "a", "b", "c")
    broker.settle()
    broker.restart()
    stored = broker.store.stored
    read_back = stored.reader.read_back

    def damaged(run: Run, skipped: int, count: int, *, in_chunks: bool = False) -> Any:
        if run.first_sequence + skipped == 2:
            return MessageDamagedError(2, "for this test")
        if run.first_sequence + skipped < 2:
            count = min(count, 2 - run.first_sequence - skipped)
        return read_back(run, skipped, count, in_chunks=in_chunks)

    monkeypatch.setattr(stored.reader, "read_back", damaged)
    rows = operator.page("orders")["messages"]
    assert [row["payload"] for row in rows] == ["a", "", "c"]
    assert [row.get("error", "")[:14] for row in rows] == ["", "cannot be read", ""]
    answer = operator.moves("orders", "other", filter={})
    assert (answer["moved"], answer["left"]) == (2, {"cannot be read": 1})
    assert operator.sees("other") == ["a", "c"]
    assert broker.vhost.queue("orders").ready_count == 1
    assert operator.deletes("orders", positions=[2])["deleted"] == 1


def test_a_page_holds_no_more_of_bodies_than_it_shows(
    broker: SimulatedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand whole bodies would not fit into memory."""
    monkeypatch.setattr(browsing, "MAX_PAYLOADS_BYTES", 500)
    queue = broker.queue("orders")
    for number in range(100):
        client.publish("", "orders", f"{number:05}" * 2000)
    broker.settle()
    for _ in range(20):
        client.get("orders")
    wanted = browsing.PageRequest(None, 0, 100, None, 1000, 15)
    steps = browsing.browse(broker.broker.services, queue, wanted)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            page: browsing.Page = end.value
            break
    assert [one.body_bytes for one in page.messages] == [10_000] * 100
    kept = [len(one.message.body) for one in page.messages if one.message]
    assert max(kept) == 15
    assert sum(kept) <= 2 * 500  # of unacked ones, and of ready ones
    assert kept[:20] == [15] * 20


def test_a_page_ends_where_properties_are_long(
    broker: SimulatedBroker,
    client: Client,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MAX_PROPERTIES_BYTES", 250)
    broker.queue("orders")
    bodies = [str(number) for number in range(20)]
    client.publish("", "orders", *bodies, headers={"x": "y" * 100})
    broker.settle()
    page = operator.page("orders")
    assert (len(page["messages"]), page["next"]) == (3, "4")
    assert operator.sees("orders") == bodies
    for _ in range(8):
        client.get("orders")
    client.requeue("3")
    broker.settle()
    assert operator.page("orders")["unacked"] == 7
    assert [one.strip("[]") for one in operator.sees("orders")] == bodies
