"""Policies: which one counts for a queue or an exchange, and when that changes."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpstore_server.broker.rules import policy
from amqpstore_server.broker.rules.policy import Policies, Policy
from amqpstore_server.broker.rules.settings import Settings
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client


def policies(*some: Policy, operator: bool = False) -> Policies:
    found = Policies("/")
    found.have(some, operator=operator)
    return found


def limit(name: str, length: int, pattern: str = ".*", **more: object) -> Policy:
    return Policy(name, pattern, definition={"max-length": length}, **more)  # type: ignore[arg-type]


def test_where_no_policy_matches_nothing_is_set() -> None:
    found = policies(limit("p", 5, "^other"))
    assert found.queue_settings("orders", {}) == Settings()
    assert found.alternate("orders", {}) == ""


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("", True),
        (".*", True),
        ("^orders$", True),
        ("rder", True),
        ("^rder", False),
        ("orders.", False),
        ("^(orders|audit)$", True),
        ("ORDERS", False),
        ("(?i)ORDERS", True),
    ],
)
def test_a_pattern_matches_anywhere_in_the_name(pattern: str, matches: bool) -> None:
    found = policies(limit("p", 5, pattern)).queue_settings("orders", {})
    assert found.max_length == (5 if matches else None)


@pytest.mark.parametrize(
    ("apply_to", "queues", "quorum_queues", "exchanges"),
    [
        ("all", True, True, True),
        ("queues", True, True, False),
        ("classic_queues", True, False, False),
        ("quorum_queues", False, True, False),
        ("exchanges", False, False, True),
        ("streams", False, False, False),
    ],
)
def test_a_policy_is_for_queues_or_exchanges_or_both(
    apply_to: str, queues: bool, quorum_queues: bool, exchanges: bool
) -> None:
    definition = {"max-length": 5, "alternate-exchange": "unrouted"}
    found = policies(Policy("p", ".*", apply_to, 0, definition))
    assert (found.queue_settings("x", {}).max_length == 5) == queues
    quorum = {"x-queue-type": "quorum"}
    assert (found.queue_settings("x", quorum).max_length == 5) == quorum_queues
    assert (found.alternate("x", {}) == "unrouted") == exchanges


def test_the_highest_priority_counts_alone() -> None:
    found = policies(
        Policy("a", ".*", definition={"max-length": 1, "expires": 7}),
        limit("b", 2, priority=5),
        limit("c", 3, priority=-1),
        limit("d", 4, "^other$", priority=9),
    )
    assert found.queue_settings("orders", {}) == Settings(max_length=2)


def test_of_one_priority_it_is_always_the_same_one() -> None:
    one, other = limit("a", 1), limit("b", 2)
    assert policies(one, other).queue_settings("q", {}) == policies(other, one).queue_settings(
        "q", {}
    )


def test_an_operator_policy_is_chosen_on_its_own_and_goes_on_top() -> None:
    found = policies(limit("p", 10, priority=9))
    found.have([limit("o", 5), limit("weak", 1, priority=-1)], operator=True)
    assert found.queue_settings("q", {}).max_length == 5
    assert found.queue_settings("q", {"x-max-length": 3}).max_length == 3


def test_an_operator_policy_is_not_for_exchanges() -> None:
    operator = Policy("o", ".*", definition={"alternate-exchange": "x"})
    assert policies(operator, operator=True).alternate("e", {}) == ""


def test_the_argument_of_an_exchange_comes_before_the_policy() -> None:
    found = policies(Policy("p", ".*", definition={"alternate-exchange": "of-policy"}))
    assert found.alternate("e", {"alternate-exchange": "of-argument"}) == "of-argument"
    assert found.alternate("e", {}) == "of-policy"


def test_an_alternate_exchange_that_is_no_name_is_none() -> None:
    found = policies(Policy("p", ".*", definition={"alternate-exchange": 5}))
    assert found.alternate("e", {}) == ""


def test_what_is_replaced_is_gone_from_the_catalog() -> None:
    found = policies(limit("a", 1), limit("b", 2))
    rows = {change.key: change.value for change in found.changes([limit("b", 3)], operator=False)}
    assert rows["/\0user\0a"] is None
    assert rows["/\0user\0b"]["definition"] == {"max-length": 3}
    again = Policies("/")
    again.restore(rows["/\0user\0b"])
    assert again.queue_settings("q", {}).max_length == 3


# On a broker.


@pytest.mark.parametrize("operator", [False, True])
def test_only_what_changes_is_stored(operator: bool) -> None:
    """Thousands of policies may be defined, and all clients wait for the commit."""
    some = [limit(f"p{number}", 5, f"^{number}") for number in range(10)]
    found = policies(*some, operator=operator)
    changed = limit("p3", 6, "^3")
    asked = [*some[:3], changed, *some[5:]]
    changes = found.changes(asked, operator=operator)
    assert [bool(change.value) for change in changes] == [False, True]


def test_a_policy_holds_at_once_for_what_is_there_and_for_what_comes() -> None:
    simulated = SimulatedBroker()
    simulated.queue("before")
    client = Client(simulated)
    client.publish("", "before", "a", "b", "c")
    simulated.settle()
    simulated.vhost.policy_settings.define([limit("p", 2, "^(before|after)$")], operator=False)
    assert simulated.ready("before") == ["b", "c"]
    simulated.queue("after")
    simulated.queue("other")
    for queue in ("after", "other"):
        client.publish("", queue, "a", "b", "c")
    simulated.settle()
    assert simulated.ready("after") == ["b", "c"]
    assert simulated.ready("other") == ["a", "b", "c"]


def test_a_policy_that_is_gone_holds_no_more() -> None:
    simulated = SimulatedBroker()
    simulated.queue("q")
    simulated.vhost.policy_settings.define([limit("p", 1)], operator=False)
    client = Client(simulated)
    client.publish("", "q", "a", "b")
    simulated.vhost.policy_settings.define([], operator=False)
    client.publish("", "q", "c", "d")
    simulated.settle()
    assert simulated.ready("q") == ["b", "c", "d"]


def test_what_a_policy_drops_becomes_a_dead_letter() -> None:
    simulated = SimulatedBroker()
    simulated.queue("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    simulated.queue("dead")
    Client(simulated).publish("", "q", "a", "b", "c")
    simulated.settle()
    simulated.vhost.policy_settings.define([limit("p", 1, "^q$")], operator=True)
    simulated.settle()
    assert simulated.ready("q") == ["c"]
    assert simulated.ready("dead") == ["a", "b"]


def test_policies_are_there_after_a_restart() -> None:
    simulated = SimulatedBroker()
    simulated.queue("q")
    simulated.exchange("e")
    simulated.vhost.policy_settings.define(
        [
            limit("p", 2, "^q$"),
            Policy("e", "^e$", "exchanges", 0, {"alternate-exchange": "unrouted"}),
        ],
        operator=False,
    )
    simulated.vhost.policy_settings.define([limit("o", 1, "^q$")], operator=True)
    simulated.restart()
    assert simulated.vhost.queue("q").settings.max_length == 1
    assert simulated.vhost.exchange("e").alternate == "unrouted"


names = st.text("ab.*", max_size=4)
patterns = st.builds(
    "".join,
    st.lists(st.sampled_from(["^", "a", "b", r"\\.", ".", "*", "?", "+", "{0}", "|", "$", "(?i)"])),
)


@given(
    st.lists(
        st.tuples(patterns, st.integers(0, 2), st.sampled_from(["all", "queues", "exchanges"]))
    ),
    names,
)
def test_an_index_finds_what_a_look_at_all_policies_finds(
    drawn: list[tuple[str, int, str]], name: str
) -> None:
    some = [
        Policy(f"p{number}", pattern, apply_to, priority)
        for number, (pattern, priority, apply_to) in enumerate(drawn)
    ]
    queues = frozenset({"all", "queues", "classic_queues"})
    matching = [one for one in some if one.applies(name, queues)]
    expected = max(matching, key=lambda one: (one.priority, one.name), default=None)
    assert policies(*some).of_queue(name, {}, operator=False) == expected


def test_a_name_is_compared_with_few_of_very_many_policies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: Counter[str] = Counter()
    applies = Policy.applies

    def noted(self: Policy, name: str, kinds: Any) -> bool:
        compared[name] += 1
        return applies(self, name, kinds)

    monkeypatch.setattr(Policy, "applies", noted)
    some = [limit(f"p{number}", number, rf"^team{number:04}\.") for number in range(3000)]
    found = policies(limit("any", 1, "orders"), *some, limit("all", 2, "", priority=-1))
    assert found.most_compared == 3
    for number in range(0, 3000, 500):
        name = f"team{number:04}.orders"
        assert found.queue_settings(name, {}).max_length == number
        assert compared[name] <= 3


def test_very_many_patterns_are_compiled_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = [0]
    monkeypatch.setattr(policy, "pattern_of", lambda *_: compiled.append(compiled.pop() + 1))
    simulated = SimulatedBroker()
    simulated.vhost.policies.have([limit(f"p{n}", n, f"q{n}") for n in range(450)], operator=False)
    compiled.extend(0 for _ in simulated.vhost.policy_settings.applying())
    assert sum(compiled) == 450
    assert max(compiled) == 100
