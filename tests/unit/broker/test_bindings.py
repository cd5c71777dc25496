"""A queue or an exchange is deleted with its bindings and the exchanges that these kept alive."""

import contextlib
import sys
from types import FrameType
from typing import Any

import pytest

from amqpstore import DiskFullError
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.exchanges.base import Exchange
from amqpstore_server.broker.queues.queue import Queue
from tests.simulated_broker import SimulatedBroker

MANY = 2000
"""The number of exchanges in a row: nested calls of as many would exceed Python's limit."""


def declare_auto_delete(simulated: SimulatedBroker, name: str, *, durable: bool) -> Exchange:
    simulated.vhost.exchange_definitions.declare(
        name, "fanout", durable=durable, auto_delete=True, internal=False, arguments={}
    )
    return simulated.vhost.exchange(name)


def row_of_exchanges(simulated: SimulatedBroker, *, durable: bool = False) -> Queue:
    """Exchanges e0 to e1999, each bound to the one before, and a queue bound to the last."""
    vhost = simulated.vhost
    before = declare_auto_delete(simulated, "e0", durable=durable)
    for number in range(1, MANY):
        exchange = declare_auto_delete(simulated, f"e{number}", durable=durable)
        vhost.bindings.bind(exchange, before.name, "", {})
        before = exchange
    queue = simulated.queue("q", durable=durable)
    vhost.bindings.bind(queue, before.name, "", {})
    return queue


def left(simulated: SimulatedBroker) -> list[str]:
    return [name for name in simulated.vhost.exchanges if not name.startswith("amq.")]


def test_auto_delete_exchanges_in_a_row_go_with_a_queue(simulated: SimulatedBroker) -> None:
    simulated.vhost.delete_queue(row_of_exchanges(simulated))
    assert left(simulated) == []


def test_they_go_with_an_exchange(simulated: SimulatedBroker) -> None:
    row_of_exchanges(simulated)
    simulated.vhost.exchange_definitions.delete(f"e{MANY - 1}", if_unused=False)
    assert left(simulated) == []


def test_they_go_with_a_binding(simulated: SimulatedBroker) -> None:
    queue = row_of_exchanges(simulated)
    simulated.vhost.bindings.unbind(queue, f"e{MANY - 1}", "", {})
    assert left(simulated) == []
    assert "q" in simulated.vhost.queues


def test_they_go_in_one_commit(simulated: SimulatedBroker) -> None:
    queue = row_of_exchanges(simulated, durable=True)
    with simulated.commits() as commits:
        simulated.vhost.delete_queue(queue)
    assert len(commits) == 1
    simulated.crash()
    assert left(simulated) == []
    assert simulated.store.definitions.rows("bindings") == {}


def test_a_circle_of_auto_delete_exchanges(simulated: SimulatedBroker) -> None:
    one = declare_auto_delete(simulated, "one", durable=True)
    two = declare_auto_delete(simulated, "two", durable=True)
    simulated.vhost.bindings.bind(two, "one", "", {})
    simulated.vhost.bindings.bind(one, "two", "", {})
    simulated.vhost.bindings.bind(one, "one", "", {})
    simulated.vhost.exchange_definitions.delete("one", if_unused=False)
    assert left(simulated) == []
    simulated.restart()
    assert left(simulated) == []
    assert simulated.store.definitions.rows("bindings") == {}


def test_an_exchange_with_a_binding_left_stays(simulated: SimulatedBroker) -> None:
    declare_auto_delete(simulated, "e", durable=True)
    for name in ("a", "b"):
        simulated.queue(name)
        simulated.bind("e", name)
        simulated.bind("e", name, "again")
    simulated.vhost.delete_queue(simulated.vhost.queue("a"))
    assert [one.destination.name for one in simulated.vhost.exchange("e").bindings] == ["b", "b"]
    simulated.vhost.bindings.unbind(simulated.vhost.queue("b"), "e", "again", {})
    assert left(simulated) == ["e"]
    simulated.vhost.delete_queue(simulated.vhost.queue("b"))
    assert left(simulated) == []


def test_a_binding_to_an_exchange_keeps_it_and_is_its_last_as_any_other(
    simulated: SimulatedBroker,
) -> None:
    source = declare_auto_delete(simulated, "source", durable=True)
    simulated.exchange("behind")
    behind = simulated.vhost.exchange("behind")
    simulated.vhost.bindings.bind(behind, source.name, "", {})
    simulated.queue("q")
    simulated.bind("source", "q")
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    assert left(simulated) == ["source", "behind"]
    simulated.restart()
    assert left(simulated) == ["behind", "source"]
    simulated.vhost.bindings.unbind(simulated.vhost.exchange("behind"), source.name, "", {})
    assert left(simulated) == ["behind"]


@pytest.mark.parametrize("kind", ["fanout", "direct", "topic", "headers", "x-random"])
def test_a_delete_looks_only_at_its_own_bindings(simulated: SimulatedBroker, kind: str) -> None:
    simulated.exchange("e", kind)

    def steps_with(first: int, last: int) -> int:
        """Return how many Python steps a delete takes once queues up to `last` are bound too."""
        for number in range(first, last):
            simulated.queue(f"q{number}", durable=False)
            simulated.bind("e", f"q{number}", "key", n=number)
        queue = simulated.queue("q", durable=False)
        simulated.bind("e", "q", "key", n="q")
        return steps_of(lambda: simulated.vhost.delete_queue(queue))

    few = steps_with(0, 10)
    assert steps_with(10, 500) < 1.5 * few


def steps_of(work: Any) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    # Python 3.12 looks for this where tracing begins, and not in each frame.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_a_binding_to_an_internal_exchange_is_there_after_a_restart(
    simulated: SimulatedBroker,
) -> None:
    simulated.exchange("e")
    simulated.vhost.exchange_definitions.declare(
        "inside", "fanout", durable=True, auto_delete=False, internal=True, arguments={}
    )
    simulated.vhost.bindings.bind(simulated.vhost.exchange("inside"), "e", "", {})
    simulated.restart()
    bindings = simulated.vhost.exchange("e").bindings
    assert [one.destination.name for one in bindings] == ["inside"]


@pytest.mark.parametrize(
    ("bound", "other"),
    [
        ("text", b"text"),
        (b"\xff", "\udcff"),
        (1, 1.0),
        ([1, b"a", {"in": "b"}], [1.0, "a", {"in": b"b"}]),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}),
    ],
)
def test_arguments_that_match_alike_are_one_binding(
    simulated: SimulatedBroker, bound: object, other: object
) -> None:
    queue = simulated.queue("q")
    assert simulated.vhost.bindings.bind(queue, "amq.headers", "", {"a": bound})
    assert not simulated.vhost.bindings.bind(queue, "amq.headers", "", {"a": other})
    assert simulated.vhost.bindings.unbind(queue, "amq.headers", "", {"a": other})
    # Its row is gone, too.
    simulated.restart()
    assert simulated.vhost.exchange("amq.headers").bindings == []


@pytest.mark.parametrize(
    ("bound", "other"),
    [(1, True), (1, "1"), (1, 1.5), (1.0, 1.5), ([], {}), (["a"], "a"), (None, ""), ([1], [1, 1])],
)
def test_other_arguments_are_other_bindings(
    simulated: SimulatedBroker, bound: object, other: object
) -> None:
    queue = simulated.queue("q")
    assert simulated.vhost.bindings.bind(queue, "amq.headers", "", {"a": bound})
    assert not simulated.vhost.bindings.unbind(queue, "amq.headers", "", {"a": other})
    assert simulated.vhost.bindings.bind(queue, "amq.headers", "", {"a": other})
    simulated.restart()
    assert len(simulated.vhost.exchange("amq.headers").bindings) == 2


@pytest.mark.parametrize(
    ("declared", "again", "right"),
    [
        ({"dead_letter_exchange": "letters"}, {"dead_letter_exchange": b"letters"}, True),
        ({"queue_type": "classic"}, {"queue_type": b"classic"}, True),
        ({}, {"queue_type": b"classic"}, True),
        ({"dead_letter_exchange": "letters"}, {"dead_letter_exchange": b"other"}, False),
        ({"max_length": 10}, {"max_length": 10.0}, False),
        ({"max_length": 10}, {"max_length": "10"}, False),
        ({"max_length": 1}, {"max_length": True}, False),
    ],
)
def test_a_redeclaration_may_have_other_types_for_the_same_values(
    simulated: SimulatedBroker, declared: dict[str, Any], again: dict[str, Any], right: bool
) -> None:
    simulated.queue("q", **declared)
    with contextlib.nullcontext() if right else pytest.raises(PreconditionFailedError):
        simulated.queue("q", **again)


def test_the_alternate_exchange_may_come_as_bytes(simulated: SimulatedBroker) -> None:
    for alternate in ("other", b"other"):
        simulated.exchange("e", alternate_exchange=alternate)
    with pytest.raises(PreconditionFailedError):
        simulated.exchange("e", alternate_exchange=b"others")


def test_what_could_not_be_stored_is_as_it_was_before(
    simulated: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binding that was refused is not there, and can be made later; one that stays is there."""
    vhost = simulated.vhost
    queue = simulated.queue("q", durable=True)
    vhost.bindings.bind(queue, "amq.direct", "stays", {})

    def full(*_: object) -> None:
        raise DiskFullError("disk", 0, 0)

    with monkeypatch.context() as patch:
        patch.setattr(simulated.store.definitions, "define", full)
        with pytest.raises(DiskFullError):
            vhost.bindings.bind(queue, "amq.direct", "refused", {})
        with pytest.raises(DiskFullError):
            vhost.bindings.unbind(queue, "amq.direct", "stays", {})

    exchange = vhost.exchange("amq.direct")
    assert {binding.routing_key for binding in exchange.bindings} == {"stays"}
    assert vhost.bindings.bind(queue, "amq.direct", "refused", {})
    simulated.restart()
    exchange = simulated.vhost.exchange("amq.direct")
    assert {binding.routing_key for binding in exchange.bindings} == {"stays", "refused"}
