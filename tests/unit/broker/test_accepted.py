"""One table of names says what has an effect, for every way in which names come in."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from amqpstore_server.administration.changes import AdministrationError
from amqpstore_server.administration.definitions import PolicyDefinition, definitions_of, load
from amqpstore_server.administration.importing import apply_definitions
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.work import done
from amqpstore_server.broker.definitions import accepted
from amqpstore_server.broker.definitions.accepted import (
    TABLE,
    NameScope,
    Treatment,
    check_arguments,
    check_policy,
    entry,
    exchange_notes,
    notes,
    policy_notes,
    queue_notes,
    shortened,
)
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.broker.rules.settings import CHECKS, POLICY_KEYS, settings_of
from amqpstore_server.logins.users import Users
from amqpstore_server.management.answers import NOTES, no_content, noted
from amqpstore_server.protocol import methods
from tests.fuzz.simulated import SimulatedClient, SimulatedServer
from tests.simulated_broker import SimulatedBroker

PROTOCOL = Path(__file__).parents[3] / "server" / "PROTOCOL.md"
BY = By("anna", "test")


def declared(simulated: SimulatedBroker, name: str, arguments: dict[str, Any]) -> None:
    simulated.vhost.declare_queue(
        name,
        durable=True,
        exclusive=False,
        auto_delete=False,
        arguments=arguments,
        connection=None,
    )


def imported(simulated: SimulatedBroker, **content: Any) -> list[str]:
    """Import definitions. Returns what was left out."""
    importing = apply_definitions(
        definitions_of(content, "file"), simulated.broker, Users(simulated.store), {}
    )
    while True:
        try:
            next(importing)
        except StopIteration as ended:
            left_out: list[str] = ended.value
            return left_out


def policy(name: str, value: Any = 1, apply_to: str = "all") -> dict[str, Any]:
    return {
        "vhost": "/",
        "name": name,
        "pattern": "^q",
        "apply-to": apply_to,
        "definition": {name: value},
    }


def of(treatment: Treatment, *scopes: NameScope) -> list[tuple[NameScope, str]]:
    return [
        (scope, name)
        for scope in scopes
        for name, its_entry in TABLE[scope].items()
        if its_entry.treatment is treatment
    ]


def test_the_document_has_the_table() -> None:
    rows = re.findall(
        r"^\| ([\w ]+) \| (acts|note|refused) \| (.+?) \| (.*?) ?\|$",
        PROTOCOL.read_text("utf-8"),
        re.MULTILINE,
    )
    documented = {
        (where, name): (becomes, why)
        for where, becomes, names, why in rows
        for name in re.findall("`([^`]+)`", names)
    }
    assert documented == {
        (scope.value, name): (its_entry.treatment.value, its_entry.reason)
        for scope, names in TABLE.items()
        for name, its_entry in names.items()
    }


def test_all_that_has_a_check_acts() -> None:
    for scope, known in ((NameScope.QUEUE, CHECKS), (NameScope.POLICY, POLICY_KEYS)):
        assert {name for name in TABLE[scope] if name in known} == set(known)
        assert all(entry(scope, name).treatment is Treatment.ACTS for name in known)


@pytest.mark.parametrize(("scope", "name"), of(Treatment.NOTED, NameScope.QUEUE))
def test_an_argument_without_effect_is_taken_by_each_road_and_noted(
    simulated: SimulatedBroker, scope: NameScope, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    declared(simulated, "q", {name: 1})
    assert [vars(one)["note"] for one in caplog.records if hasattr(one, "note")] == notes(
        scope, [name]
    )
    queue = {"vhost": "/", "name": "r", "durable": True, "arguments": {name: 1}}
    assert imported(simulated, queues=[queue]) == []
    assert simulated.vhost.queue("r").arguments == {name: 1}


@pytest.mark.parametrize(("scope", "name"), of(Treatment.REFUSED, NameScope.QUEUE))
def test_an_argument_that_cannot_act_is_refused_by_each_road(
    simulated: SimulatedBroker, scope: NameScope, name: str
) -> None:
    reason = entry(scope, name).reason
    with pytest.raises(PreconditionFailedError, match=re.escape(reason)):
        declared(simulated, "q", {name: 1})
    refused = {"vhost": "/", "name": "r", "durable": True, "arguments": {name: 1}}
    (left_out,) = imported(simulated, queues=[refused, {**refused, "name": "s", "arguments": {}}])
    assert name in left_out
    assert reason in left_out
    assert list(simulated.vhost.queues) == ["s"]


POLICY_NAMES = of(Treatment.NOTED, NameScope.POLICY, NameScope.OPERATOR_POLICY) + of(
    Treatment.REFUSED, NameScope.POLICY, NameScope.OPERATOR_POLICY
)


@pytest.mark.parametrize(("scope", "name"), [*POLICY_NAMES, (NameScope.POLICY, "max-lenght")])
def test_a_policy_key_is_treated_alike_by_each_road(
    simulated: SimulatedBroker, scope: NameScope, name: str
) -> None:
    treatment = entry(scope, name).treatment
    is_operator = scope is NameScope.OPERATOR_POLICY
    administration = Administration(simulated.broker, Users(simulated.store), lambda: (), float)
    asked = PolicyDefinition(
        vhost="/", name="p", pattern="^q", settings={name: 1}, apply_to="queues"
    )
    try:
        done(administration.policies.set(BY, asked, operator=is_operator))
    except AdministrationError:
        assert treatment is Treatment.REFUSED
    else:
        assert treatment is Treatment.NOTED
    about = policy(name)
    if is_operator:
        value = {key: about.pop(key) for key in ("pattern", "apply-to", "definition")}
        parameter = {**about, "component": "operator_policy", "value": value}
        left_out = imported(simulated, parameters=[parameter])
    else:
        left_out = imported(simulated, policies=[about])
    assert bool(left_out) is (treatment is Treatment.REFUSED)
    policies = [one.name for one in simulated.vhost.policies.all(operator=is_operator)]
    assert (name in policies) is (treatment is Treatment.NOTED)


@pytest.mark.parametrize(
    ("scope", "name", "meant"),
    [
        (NameScope.QUEUE, "x-max-lenght", "x-max-length"),
        (NameScope.QUEUE, "X-Max-Length", "x-max-length"),
        (NameScope.QUEUE, "x_max_length", "x-max-length"),
        (NameScope.QUEUE, "max-length-bytes", "x-max-length-bytes"),
        (NameScope.QUEUE, "x-message-tll", "x-message-ttl"),
        (NameScope.QUEUE, "x-dead-letter-exchnage", "x-dead-letter-exchange"),
        (NameScope.EXCHANGE, "alternate_exchange", "alternate-exchange"),
        (NameScope.BINDING, "x-macth", "x-match"),
        (NameScope.CONSUMER, "x-prority", "x-priority"),
        (NameScope.POLICY, "delivery-limits", "delivery-limit"),
        (NameScope.VHOST_LIMIT, "max-queue", "max-queues"),
    ],
)
def test_a_misspelling_is_refused_with_the_right_name(
    scope: NameScope, name: str, meant: str
) -> None:
    assert entry(scope, name) == (Treatment.REFUSED, f"is '{meant}' meant?")


@pytest.mark.parametrize("name", ["x-my-own", "team", "x", "x-message-type", "owner"])
def test_what_an_application_keeps_in_its_arguments_is_taken(
    simulated: SimulatedBroker, name: str
) -> None:
    assert entry(NameScope.QUEUE, name).treatment is Treatment.NOTED
    assert entry(NameScope.BINDING, name).treatment is Treatment.ACTS
    assert entry(NameScope.POLICY, name).treatment is Treatment.REFUSED


def test_thousands_of_unknown_arguments_hold_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only some of them are compared with those that act, which takes long for similar names."""
    compared: list[str] = []

    def close_matches(word: str, *_: object) -> list[str]:
        compared.append(word)
        return []

    monkeypatch.setattr(accepted, "get_close_matches", close_matches)
    arguments = {f"x-max-lenght-{number}": "" for number in range(2000)}
    for scope in (NameScope.QUEUE, NameScope.BINDING, NameScope.CONSUMER):
        compared.clear()
        check_arguments(scope, arguments, "it")
        assert 0 < len(compared) < 100
    assert len(notes(NameScope.QUEUE, arguments)) == 2000


def test_a_misspelt_argument_of_a_binding_is_refused(simulated: SimulatedBroker) -> None:
    simulated.queue("q")

    def bind(arguments: dict[str, Any]) -> None:
        simulated.vhost.bindings.bind(simulated.vhost.queue("q"), "amq.headers", "", arguments)

    with pytest.raises(PreconditionFailedError, match="'x-match' meant"):
        bind({"x-mtach": "any", "size": 1})
    bind({"x-match": "any", "size": 1})


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({}, True),
        ({"x-priority": 1}, True),
        ({"x-cancel-on-ha-failover": True}, True),
        ({"x-prority": 1}, False),
        ({"x-credit": {"credit": 5}}, False),
    ],
)
def test_arguments_of_a_consumer_are_in_the_table(arguments: dict[str, Any], right: bool) -> None:
    server = SimulatedServer()
    server.queue("q")
    client = SimulatedClient.opened(server, channels=1)
    (answer, *_) = client.ask(
        1, methods.BasicConsume(queue="q", consumer_tag="c", arguments=arguments)
    )
    assert isinstance(answer.method, methods.BasicConsumeOk) is right
    if not right:
        assert isinstance(answer.method, methods.ChannelClose)
        assert answer.method.reply_code == 406


def test_what_of_a_consumer_has_no_effect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = SimulatedServer()
    server.queue("q")
    client = SimulatedClient.opened(server, channels=1)
    arguments: dict[str, Any] = {"x-priority": 1, "x-cancel-on-ha-failover": True}
    arguments["x-stream-offset"] = "first"
    client.ask(
        1, methods.BasicConsume(queue="q", consumer_tag="c", no_local=True, arguments=arguments)
    )
    records = [vars(one) for one in caplog.records if hasattr(one, "note")]
    logged = [(one["queue"], one["consumer"], one["note"]) for one in records]
    reasons = [
        rule.reason for name in arguments if (rule := entry(NameScope.CONSUMER, name)).reason
    ]
    assert len(reasons) == 2
    assert logged == [
        ("q", "c", f"argument of a consumer 'x-cancel-on-ha-failover' has no effect: {reasons[0]}"),
        ("q", "c", f"argument of a consumer 'x-stream-offset' has no effect: {reasons[1]}"),
        ("q", "c", "'no-local' of a consumer has no effect: it gets what its connection publishes"),
    ]


def test_a_policy_for_streams_is_taken_and_matches_nothing(simulated: SimulatedBroker) -> None:
    assert imported(simulated, policies=[policy("max-age", "7D", "streams")]) == []
    simulated.queue("q")
    assert simulated.vhost.policies.of_queue("q", {}, operator=False) is None
    assert len(policy_notes("streams", {"max-age": "7D"}, operator=False)) == 1
    assert check_policy("queues", {"max-lenght": 1}, operator=False)


AT_LEAST_ONCE: dict[str, Any] = {
    "dead-letter-strategy": "at-least-once",
    "overflow": "reject-publish",
    "dead-letter-exchange": "dlx",
}


@pytest.mark.parametrize("road", ["declaration", "import", "policy", "imported policy"])
def test_dead_letters_go_at_least_once_by_each_road(simulated: SimulatedBroker, road: str) -> None:
    arguments = {f"x-{key}": value for key, value in AT_LEAST_ONCE.items()}
    if road == "declaration":
        declared(simulated, "q", arguments)
    elif road == "import":
        queue = {"vhost": "/", "name": "q", "durable": True, "arguments": arguments}
        assert imported(simulated, queues=[queue]) == []
    else:
        declared(simulated, "q", {})
        if road == "policy":
            administration = Administration(
                simulated.broker, Users(simulated.store), lambda: (), float
            )
            definition = PolicyDefinition(
                vhost="/", name="p", pattern="^q", settings=AT_LEAST_ONCE, apply_to="queues"
            )
            done(administration.policies.set(BY, definition, operator=False))
        else:
            of_file = {**policy("p"), "definition": AT_LEAST_ONCE}
            assert imported(simulated, policies=[of_file]) == []
    assert simulated.vhost.queue("q").settings.keeps_letters


def test_a_strategy_without_what_it_needs_is_noted() -> None:
    assert policy_notes("queues", AT_LEAST_ONCE, operator=False) == []
    for key in ("overflow", "dead-letter-exchange"):
        without = {name: value for name, value in AT_LEAST_ONCE.items() if name != key}
        (note,) = policy_notes("queues", without, operator=False)
        assert "no effect" in note
        (note,) = queue_notes({}, settings_of({}, without))
        assert "no effect" in note
    assert queue_notes({}, settings_of({}, AT_LEAST_ONCE)) == []
    assert check_policy("queues", {"dead-letter-strategy": "at-least-twice"}, operator=False)


def test_a_refused_policy_of_a_file_leaves_the_one_that_is_there(
    simulated: SimulatedBroker,
) -> None:
    for value, left in ((5, 0), ("five", 1)):
        assert len(imported(simulated, policies=[policy("max-length", value)])) == left
        (kept,) = simulated.vhost.policies.all(operator=False)
        assert kept.definition == {"max-length": 5}
    assert imported(simulated, policies=[]) == []
    assert simulated.vhost.policies.all(operator=False) == []


def test_one_wrong_entry_does_not_keep_the_others_out(
    simulated: SimulatedBroker, tmp_path: Path
) -> None:
    queue = {"vhost": "/", "name": "q", "durable": True, "arguments": {}}
    wrong = [{**queue, "name": 7}, "queue", {**queue, "name": "r", "durable": "yes"}]
    file = tmp_path / "definitions.json"
    file.write_text(
        json.dumps({"queues": [*wrong, queue], "vhosts": [{"name": ""}], "policies": [None]}),
        "utf-8",
    )
    definitions = load(str(file))
    assert [(one.kind, one.name) for one in definitions.left_out] == [
        ("vhost", ""),
        ("policy", ""),
        ("queue", ""),
        ("queue", ""),
        ("queue", "r"),
    ]
    assert definitions.left_out[-1].reason.endswith(" - at `$.queues[2].durable`")
    left_out = imported(simulated, **json.loads(file.read_text("utf-8")))
    assert len(left_out) == 5
    assert list(simulated.vhost.queues) == ["q"]


def test_limits_that_do_not_exist_are_left_out(simulated: SimulatedBroker) -> None:
    limits = {"max-queue": 5}
    parameter = {"component": "vhost-limits", "vhost": "/", "name": "limits", "value": limits}
    (left_out,) = imported(simulated, parameters=[parameter])
    assert "'max-queues' meant" in left_out
    assert simulated.vhost.limits == {}


def test_of_very_many_notes_the_first_are_told_and_how_many_more_there_are(
    simulated: SimulatedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    arguments: dict[str, Any] = {f"own-{number}": 1 for number in range(25)}
    told = shortened(notes(NameScope.QUEUE, arguments))
    assert told == [*notes(NameScope.QUEUE, arguments)[:10], "and 15 more"]
    simulated.exchange("e", **arguments)
    assert len([one for one in caplog.records if hasattr(one, "note")]) == 11
    (header,) = noted(no_content(), notes(NameScope.QUEUE, arguments)).headers.getlist(NOTES)
    assert header.count("has no effect") == 10
    assert header.endswith("; and 15 more")


@pytest.mark.parametrize(
    ("type_name", "arguments", "noted"),
    [
        ("direct", {"alternate-exchange": "other"}, []),
        ("topic", {"hash-header": "id", "x-delayed-type": "direct"}, [*"ht"]),
        ("x-consistent-hash", {"hash-header": "id"}, []),
        ("x-consistent-hash", {"x-recent-history-length": 5}, ["l"]),
        ("x-recent-history", {"x-recent-history-length": 5}, []),
        ("x-delayed-message", {"x-delayed-type": "direct", "hash-header": "id"}, ["h"]),
        ("x-delayed-message", {"x-delayed-type": "x-consistent-hash", "hash-header": "id"}, []),
        ("x-delayed-message", {"x-delayed-type": ["direct"]}, []),
    ],
)
def test_an_argument_that_only_other_types_of_exchanges_read_is_noted(
    type_name: str, arguments: dict[str, Any], noted: list[str]
) -> None:
    names = {"h": "hash-header", "t": "x-delayed-type", "l": "x-recent-history-length"}
    found = exchange_notes(type_name, arguments)
    assert [note.split("'")[1] for note in found] == [names[one] for one in noted]


@pytest.mark.parametrize(
    ("apply_to", "noted"),
    [
        ("all", []),
        ("queues", ["alternate-exchange"]),
        ("quorum_queues", ["alternate-exchange"]),
        ("exchanges", ["max-length"]),
    ],
)
def test_a_policy_key_that_nothing_in_its_scope_has_is_noted(
    apply_to: str, noted: list[str]
) -> None:
    definition = {"max-length": 5, "alternate-exchange": "other"}
    found = policy_notes(apply_to, definition, operator=False)
    assert [note.split("'")[1] for note in found] == noted
    (note,) = policy_notes("exchanges", {"max-length": 5}, operator=True)
    assert note.startswith("operator policy key 'max-length' has no effect: it is of queues")
    (note,) = policy_notes("streams", {"max-age": "7D"}, operator=True)
    assert note.startswith("an operator policy for streams has no effect")


def test_a_dead_letter_routing_key_without_an_exchange_is_noted() -> None:
    assert len(policy_notes("queues", {"dead-letter-routing-key": "k"}, operator=False)) == 1
    both = {"dead-letter-routing-key": "k", "dead-letter-exchange": ""}
    assert policy_notes("queues", both, operator=False) == []
