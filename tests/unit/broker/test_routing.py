"""Routing: over bindings, alternate exchanges and further exchanges, each queue once (C21, C22,
C33 to C37), and what is remembered of it."""

from collections.abc import Callable
from typing import Any

import pytest

from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.errors import AccessRefusedError, NotFoundError
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.exchanges.fanout import FanoutExchange
from amqpstore_server.broker.exchanges.headers import HeadersExchange
from amqpstore_server.broker.exchanges.topic import TopicExchange
from amqpstore_server.broker.work.limits import BrokerLimits
from amqpstore_server.protocol.content import BasicProperties
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client, labelled


@pytest.fixture
def simulated() -> SimulatedBroker:
    return with_queues(SimulatedBroker())


def with_queues(simulated: SimulatedBroker) -> SimulatedBroker:
    for queue in ("a", "b", "c"):
        simulated.queue(queue)
    return simulated


def link(simulated: SimulatedBroker, source: str, destination: str, key: str = "") -> None:
    """Bind an exchange to another."""
    simulated.vhost.bindings.bind(simulated.vhost.exchange(destination), source, key, {})


def routed(simulated: SimulatedBroker, exchange: str, key: str = "", **properties: Any) -> str:
    """Return the sorted names of the queues that a message goes to, the same for all callers."""
    parsed, messages = labelled(exchange, key, "x", **properties)
    router = simulated.vhost.router
    by_cache = [
        sorted(queue.name for queue in route.queues)
        for _ in range(2)
        for route, _, _ in router.routes(parsed, messages)
    ]
    alone = sorted(queue.name for queue in router.route(parsed).queues)
    assert by_cache == [alone, alone]
    return "".join(alone)


def is_returned(simulated: SimulatedBroker, exchange: str, key: str = "") -> bool:
    """Tell whether a mandatory message comes back."""
    client = Client(simulated)
    client.channel.publish(*labelled(exchange, key, "x"), Flags(mandatory=True))
    return client.told == ["returned x NO_ROUTE"]


def test_the_default_exchange_leads_to_the_queue_of_that_name(simulated: SimulatedBroker) -> None:
    assert routed(simulated, "", "a") == "a"
    assert routed(simulated, "", "nowhere") == ""
    assert routed(simulated, "", "a", headers={"CC": ["b", "a", "nowhere"], "BCC": ["c"]}) == "abc"


def test_a_queue_gets_one_copy_however_many_ways_lead_there(simulated: SimulatedBroker) -> None:
    simulated.exchange("e", "topic")
    simulated.exchange("f")
    simulated.bind("e", "a", "#")
    simulated.bind("e", "a", "x.*")
    simulated.bind("f", "a")
    link(simulated, "e", "f", "x.#")
    assert routed(simulated, "e", "x.y", headers={"CC": ["x.z"]}) == "a"
    Client(simulated).publish("e", "x.y", "once")
    simulated.settle()
    assert simulated.ready("a") == ["once"]


def test_an_exchange_that_is_missing_or_internal_is_refused(simulated: SimulatedBroker) -> None:
    simulated.vhost.exchange_definitions.declare(
        "inside", "fanout", durable=True, auto_delete=False, internal=True, arguments={}
    )
    simulated.bind("inside", "a")
    parsed, messages = labelled("inside", "", "x")
    for _ in range(2):
        with pytest.raises(AccessRefusedError, match="cannot publish to internal exchange"):
            list(simulated.vhost.router.routes(parsed, messages))
    missing, messages = labelled("missing", "", "x")
    with pytest.raises(NotFoundError):
        list(simulated.vhost.router.routes(missing, messages))
    # The broker itself may, and finds nothing where there is nothing.
    assert [queue.name for queue in simulated.vhost.router.route(parsed).queues] == ["a"]
    assert simulated.vhost.router.route(missing).queues == []
    # What it has found is not open to clients.
    assert simulated.vhost.router.shared_route("inside", "") is None
    assert simulated.vhost.router.shared_route("missing", "") is None
    with pytest.raises(AccessRefusedError):
        list(simulated.vhost.router.routes(parsed, messages))
    simulated.exchange("outside")
    link(simulated, "outside", "inside")
    assert routed(simulated, "outside") == "a"


# Alternate exchanges.


def test_an_alternate_exchange_takes_what_has_no_route(simulated: SimulatedBroker) -> None:
    simulated.exchange("e", "direct", alternate_exchange="rest")
    simulated.exchange("rest")
    simulated.bind("e", "a", "known")
    simulated.bind("rest", "b")
    assert routed(simulated, "e", "known") == "a"
    assert routed(simulated, "e", "unknown") == "b"
    assert not is_returned(simulated, "e", "unknown")


def test_alternate_exchanges_are_a_chain(simulated: SimulatedBroker) -> None:
    simulated.exchange("first", "direct", alternate_exchange="second")
    simulated.exchange("second", "direct", alternate_exchange="third")
    simulated.exchange("third", "direct")
    for exchange, queue, key in (("first", "a", "1"), ("second", "b", "2"), ("third", "c", "3")):
        simulated.bind(exchange, queue, key)
    assert [routed(simulated, "first", key) for key in "123"] == ["a", "b", "c"]
    assert routed(simulated, "first", "4") == ""
    assert is_returned(simulated, "first", "4")


@pytest.mark.parametrize("chain", [["e"], ["e", "f"], ["e", "f", "g"]])
def test_a_loop_of_alternate_exchanges_is_cut(simulated: SimulatedBroker, chain: list[str]) -> None:
    for exchange, alternate in zip(chain, [*chain[1:], chain[0]], strict=True):
        simulated.exchange(exchange, "direct", alternate_exchange=alternate)
    assert routed(simulated, "e", "x") == ""
    assert is_returned(simulated, "e", "x")
    simulated.bind(chain[-1], "a", "x")
    assert routed(simulated, "e", "x") == "a"


def test_an_alternate_exchange_that_is_missing_is_none(simulated: SimulatedBroker) -> None:
    simulated.exchange("e", "direct", alternate_exchange="later")
    assert routed(simulated, "e", "x") == ""
    simulated.exchange("later")
    simulated.bind("later", "a")
    assert routed(simulated, "e", "x") == "a"
    simulated.vhost.exchange_definitions.delete("later", if_unused=False)
    assert routed(simulated, "e", "x") == ""


def test_each_key_counts_for_whether_there_is_a_route(simulated: SimulatedBroker) -> None:
    simulated.exchange("e", "direct", alternate_exchange="rest")
    simulated.exchange("rest")
    simulated.bind("e", "a", "known")
    simulated.bind("rest", "b")
    assert routed(simulated, "e", "unknown", headers={"CC": ["known"]}) == "a"
    assert routed(simulated, "e", "unknown", headers={"CC": ["unknown too"]}) == "b"


def test_an_exchange_behind_it_is_a_route_of_its_own(simulated: SimulatedBroker) -> None:
    """Each exchange on the way has its own alternate, as in RabbitMQ."""
    simulated.exchange("e", "direct", alternate_exchange="rest of e")
    simulated.exchange("f", "direct", alternate_exchange="rest of f")
    for exchange, queue in (("rest of e", "a"), ("rest of f", "b")):
        simulated.exchange(exchange)
        simulated.bind(exchange, queue)
    link(simulated, "e", "f", "x")
    assert routed(simulated, "e", "x") == "b"
    assert routed(simulated, "e", "y") == "a"


# Exchange to exchange.


def test_bindings_of_exchanges_in_a_circle_lead_everywhere_once(
    simulated: SimulatedBroker,
) -> None:
    for exchange, queue in zip("efg", "abc", strict=True):
        simulated.exchange(exchange)
        simulated.bind(exchange, queue)
    for source, destination in (("e", "f"), ("f", "g"), ("g", "e"), ("e", "e")):
        link(simulated, source, destination)
    for exchange in "efg":
        assert routed(simulated, exchange) == "abc"
    Client(simulated).publish("f", "", "once")
    simulated.settle()
    assert [simulated.ready(queue) for queue in "abc"] == [["once"]] * 3


def test_each_exchange_on_the_way_matches_the_key(simulated: SimulatedBroker) -> None:
    simulated.exchange("e", "topic")
    simulated.exchange("f", "direct")
    link(simulated, "e", "f", "x.#")
    simulated.bind("f", "a", "x.y")
    assert routed(simulated, "e", "x.y") == "a"
    assert routed(simulated, "e", "x.z") == ""
    assert routed(simulated, "e", "y") == ""


# What is remembered.


def unbind(simulated: SimulatedBroker) -> None:
    simulated.vhost.bindings.unbind(simulated.vhost.queue("a"), "e", "x", {})


def delete_queue(simulated: SimulatedBroker) -> None:
    simulated.vhost.delete_queue(simulated.vhost.queue("a"))


def rebuild_exchange(simulated: SimulatedBroker) -> None:
    simulated.vhost.exchange_definitions.delete("e", if_unused=False)
    simulated.exchange("e", "direct")


@pytest.mark.parametrize("change", [unbind, delete_queue, rebuild_exchange])
@pytest.mark.parametrize("kind", ["direct", "x-delayed-message"])
def test_a_route_is_forgotten_when_anything_on_it_changes(
    simulated: SimulatedBroker, change: Callable[[SimulatedBroker], None], kind: str
) -> None:
    more = {"x_delayed_type": "direct"} if kind != "direct" else {}
    simulated.exchange("e", kind, **more)
    simulated.bind("e", "a", "x")
    assert routed(simulated, "e", "x") == "a"
    change(simulated)
    assert routed(simulated, "e", "x") == ""


def test_a_new_binding_is_on_the_route_at_once(simulated: SimulatedBroker) -> None:
    simulated.exchange("e", "direct")
    assert routed(simulated, "e", "x") == ""
    simulated.bind("e", "a", "x")
    assert routed(simulated, "e", "x") == "a"
    simulated.exchange("f")
    simulated.bind("f", "b")
    link(simulated, "e", "f", "x")
    assert routed(simulated, "e", "x") == "ab"


def test_routes_that_read_properties_differ_message_by_message(
    simulated: SimulatedBroker,
) -> None:
    simulated.exchange("e", "headers")
    simulated.bind("e", "a", to="a")
    simulated.bind("e", "b", to="b")
    client = Client(simulated)
    messages = []
    for body, to in (("1", "a"), ("2", "a"), ("3", "b"), ("4", "c"), ("5", "a")):
        messages += labelled("e", "", body, headers={"to": to})[1]
    label = labelled("e", "", "x")[0]
    client.channel.publish(label, messages, Flags())
    simulated.settle()
    assert simulated.ready("a") == ["1", "2", "5"]
    assert simulated.ready("b") == ["3"]


def test_keys_that_lead_to_the_same_queues_share_a_route(simulated: SimulatedBroker) -> None:
    simulated.exchange("e", "topic")
    simulated.exchange("f", "topic")
    for exchange in "ef":
        simulated.bind(exchange, "a", "a.#")
        simulated.bind(exchange, "b", "*.both")
    router = simulated.vhost.router
    first, second = (router.shared_route("e", f"a.{number}") for number in range(2))
    assert first is not None
    assert first is second
    assert [queue.name for queue in first.queues] == ["a"]
    both = router.shared_route("e", "a.both")
    assert both is not None
    assert {queue.name for queue in both.queues} == {"a", "b"}
    # Each exchange counts what goes through it.
    other = router.shared_route("f", "a.1")
    assert other is not None
    assert other is not first
    assert other.counters is not first.counters
    simulated.vhost.bindings.unbind(simulated.vhost.queue("a"), "e", "a.#", {})
    unbound = router.shared_route("e", "a.1")
    assert unbound is not None
    assert unbound.queues == []


def test_what_reads_properties_has_no_shared_route(simulated: SimulatedBroker) -> None:
    for number, kind in enumerate(("headers", "x-random", "x-delayed-message")):
        more = {"x_delayed_type": "direct"} if "delayed" in kind else {}
        simulated.exchange(f"e{number}", kind, **more)
        simulated.bind(f"e{number}", "a", "k")
        assert simulated.vhost.router.shared_route(f"e{number}", "k") is None


def test_a_draw_is_made_for_each_message(simulated: SimulatedBroker) -> None:
    simulated.exchange("e", "x-random")
    for queue in "abc":
        simulated.bind("e", queue)
    client = Client(simulated)
    for number in range(60):
        client.publish("e", "", str(number))
    simulated.settle()
    counts = [len(simulated.ready(queue)) for queue in "abc"]
    assert sum(counts) == 60
    assert min(counts) > 5


def finding(simulated: SimulatedBroker, exchange: str, **headers: Any) -> tuple[Any, Any, Any]:
    """A message of 41 routing keys, and the steps that find its route."""
    headers = {"CC": [f"{number}" for number in range(40)], **headers}
    parsed, messages = labelled(exchange, "key", "x", headers=headers)
    return parsed, messages, simulated.vhost.router.searching(parsed)


def looks(monkeypatch: pytest.MonkeyPatch, kind: type[Exchange]) -> list[str]:
    """The routing keys that exchanges look up from now on."""
    looked: list[str] = []
    route = kind.route

    def counted(exchange: Any, routing_key: str, properties: BasicProperties) -> Any:
        looked.append(routing_key)
        return route(exchange, routing_key, properties)

    monkeypatch.setattr(kind, "route", counted)
    return looked


def names(routes: Any) -> list[str]:
    return [queue.name for route, _, _ in routes for queue in route.queues]


@pytest.mark.parametrize("reads", [False, True], ids=["keys", "properties"])
def test_a_message_of_many_keys_is_routed_in_steps(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    simulated.exchange("e", "topic")
    simulated.bind("e", "a", "39")
    simulated.bind("e", "c", "nothing")
    if reads:
        simulated.exchange("h", "headers")
        link(simulated, "e", "h", "7")
        simulated.bind("h", "b", "", n=1)
    looked = looks(monkeypatch, TopicExchange)
    for n in (1, 2):  # the second time it is remembered, unless it is another message
        parsed, messages, steps = finding(simulated, "e", n=n if reads else 1)
        counts = [len(looked) for _ in steps]
        looked.clear()
        queue_names = names(simulated.vhost.router.routes(parsed, messages))
        assert queue_names == (["a", "b"] if reads and n == 1 else ["a"])
        assert looked == [], "it was looked for again"
        if reads or n == 1:
            assert counts[:5] == [8, 16, 24, 32, 40]
        else:
            assert counts == []


@pytest.mark.parametrize("kind", [HeadersExchange, FanoutExchange])
def test_an_exchange_to_which_keys_do_not_matter_routes_a_message_once(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, kind: type[Exchange]
) -> None:
    simulated.exchange("h", kind.type)
    simulated.bind("h", "b", "", n=1)
    looked = looks(monkeypatch, kind)
    parsed, messages, steps = finding(simulated, "h", n=1)
    assert list(steps) == []
    assert names(simulated.vhost.router.routes(parsed, messages)) == ["b"]
    assert looked == ["key"]


@pytest.mark.parametrize("change", ["unbound", "deleted", "exchange deleted"])
def test_what_changes_between_the_steps_is_not_remembered(
    simulated: SimulatedBroker, change: str
) -> None:
    simulated.exchange("e", "topic")
    simulated.bind("e", "a", "0")
    simulated.bind("e", "b", "1")
    simulated.exchange("behind", "topic")
    link(simulated, "e", "behind", "2")
    parsed, messages, steps = finding(simulated, "e")
    for _ in range(8):
        next(steps)
    if change == "unbound":
        simulated.vhost.bindings.unbind(simulated.vhost.queue("a"), "e", "0", {})
    elif change == "deleted":
        simulated.vhost.delete_queue(simulated.vhost.queue("a"))
    else:
        simulated.vhost.exchange_definitions.delete("e", if_unused=False)
    assert [*steps]
    router = simulated.vhost.router
    if change == "exchange deleted":
        with pytest.raises(NotFoundError):
            names(router.routes(parsed, messages))
        return
    assert names(router.routes(parsed, messages)) == ["a", "b"][change == "deleted" :]
    assert [*router.searching(parsed)]
    assert names(router.routes(parsed, messages)) == ["b"]


def test_a_draw_that_was_made_in_steps_is_for_one_message(simulated: SimulatedBroker) -> None:
    simulated.exchange("e", "x-random")
    for queue in ("a", "b", "c"):
        simulated.bind("e", queue)
    parsed, messages, steps = finding(simulated, "e")
    assert [*steps]
    router = simulated.vhost.router
    drawn = [names(router.routes(parsed, messages * 2))]
    drawn += [names(router.routes(parsed, messages)) for _ in range(50)]
    assert len({tuple(one) for one in drawn}) > 5


def test_what_is_remembered_is_bounded() -> None:
    simulated = with_queues(SimulatedBroker(limits=BrokerLimits(max_cached_bytes=10_000)))
    simulated.exchange("e", "topic")
    simulated.exchange("h", "headers")
    simulated.bind("e", "a", "#")
    simulated.bind("h", "b")
    router = simulated.vhost.router
    for number in range(50):
        assert routed(simulated, "e", f"k{number}") == "a"
        assert routed(simulated, "h", "", headers={"n": number}) == "b"
    assert 0 < len(router._routes) <= 10
    assert 0 < len(router._read_routes) <= 10


def test_a_route_to_many_queues_takes_the_room_of_many() -> None:
    simulated = SimulatedBroker(limits=BrokerLimits(max_cached_bytes=20_000))
    simulated.exchange("e", "fanout")
    for number in range(40):
        simulated.queue(f"q{number}")
        simulated.bind("e", f"q{number}")
    router = simulated.vhost.router
    for number in range(10):
        Client(simulated).publish("e", f"k{number}", "")
    assert 0 < len(router._routes) <= 2


def test_a_route_of_large_properties_is_not_remembered(simulated: SimulatedBroker) -> None:
    simulated.exchange("h", "headers")
    simulated.bind("h", "b")
    assert routed(simulated, "h", "", headers={"n": "x" * 2000}) == "b"
    assert simulated.vhost.router._read_routes == {}


def test_a_route_to_plain_queues_knows_its_places(simulated: SimulatedBroker) -> None:
    simulated.queue("limited", max_length=5)
    simulated.exchange("e")
    simulated.bind("e", "a")
    simulated.bind("e", "b")
    label, messages = labelled("e", "", "x")
    ((route, _, _),) = simulated.vhost.router.routes(label, messages)
    assert len(route.placements) == 2
    simulated.bind("e", "limited")
    ((route, _, _),) = simulated.vhost.router.routes(label, messages)
    assert len(route.placements) == 3
    assert [queue.name for queue in route.limited] == ["limited"]
    assert not route.is_simple
    simulated.queue("sorted", max_priority=1)
    simulated.bind("e", "sorted")
    ((route, _, _),) = simulated.vhost.router.routes(label, messages)
    assert route.placements == []
    assert len(route.queues) == 4
