"""An import of definitions has all of the file or nothing, whatever is in it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import argon2
import pytest

import amqpstore_server.logins.users
from amqpstore_server.administration.definitions import DefinitionsError, load
from amqpstore_server.administration.importing import apply_definitions
from amqpstore_server.broker.broker import Defined
from amqpstore_server.broker.rules.policy import Policies, Policy
from amqpstore_server.broker.rules.settings import Settings
from amqpstore_server.logins.users import Users
from tests.simulated_broker import SimulatedBroker

TABLES = ("vhosts", "users", "permissions", "policies")

NESTED: Any = None
for _ in range(400):
    NESTED = {"deeper": [NESTED]}

ODD: tuple[Any, ...] = (
    *("", "n" * 255, "n" * 256, "n" * 600, "a\0b", "\ud800", "a\r\n\x1b[2J\u2028b", "{username}"),
    *("(", "^(?!x)", "a{1001}", "(" * 5000, None, 7, -1, 1 << 63, 1 << 70, 1e308, True),
    *([], {}, [None], [[]], [{}], NESTED),
)

ALL: dict[str, list[dict[str, Any]]] = {
    "users": [{"name": "anna", "password_hash": "", "tags": []}],
    "vhosts": [{"name": "shop"}],
    "permissions": [
        {"user": "anna", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "topic_permissions": [
        {"user": "anna", "vhost": "shop", "exchange": "e", "write": "{username}", "read": ""}
    ],
    "policies": [
        {
            "vhost": "shop",
            "name": "short",
            "pattern": "^q$",
            "apply-to": "queues",
            "priority": 1,
            "definition": {"max-length": 2},
        }
    ],
    "parameters": [
        {
            "component": "operator_policy",
            "vhost": "shop",
            "name": "limit",
            "value": {"pattern": ".*", "definition": {"max-length": 3}},
        }
    ],
    "queues": [
        {
            "vhost": "shop",
            "name": "q",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-max-length": 5},
        }
    ],
    "exchanges": [
        {
            "vhost": "shop",
            "name": "e",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        }
    ],
    "bindings": [
        {
            "vhost": "shop",
            "source": "e",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "order.*",
            "arguments": {},
        }
    ],
}


def odd_files(key: str) -> Iterator[bytes]:
    """Files in which one thing is not as it should be."""
    for odd in ODD:
        yield json.dumps({**ALL, key: odd}).encode()
        yield json.dumps({**ALL, key: [odd]}).encode()
        for field in ALL[key][0]:
            # Twice: what is named twice must not count as two.
            entry = {**ALL[key][0], field: odd}
            yield json.dumps({**ALL, key: [entry, entry]}).encode()
    for number in (b"1e999", b"-1e999", b"9" * 5000, b"NaN", b"Infinity", b"-0"):
        yield json.dumps(ALL).encode().replace(b'"max-length": 2', b'"max-length": ' + number)


@pytest.mark.parametrize("key", ALL)
def test_any_file_is_taken_or_changes_nothing(tmp_path: Path, key: str) -> None:
    simulated = SimulatedBroker()
    users = Users(simulated.store)
    file = tmp_path / "definitions.json"
    for content in odd_files(key):
        file.write_bytes(content)
        before = {table: simulated.store.definitions.rows(table) for table in TABLES}
        try:
            definitions = load(str(file))
            rows = {one.name: users.imported(b"", "") for one in definitions.users}
            list(apply_definitions(definitions, simulated.broker, users, rows))
        except DefinitionsError:
            assert before == {table: simulated.store.definitions.rows(table) for table in TABLES}
    # What was taken is restored.
    counts = {table: len(simulated.store.definitions.rows(table)) for table in TABLES}
    simulated.restart()
    assert counts == {table: len(simulated.store.definitions.rows(table)) for table in TABLES}


def test_all_is_one_commit(tmp_path: Path) -> None:
    simulated = SimulatedBroker()
    users = Users(simulated.store)
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({key: ALL[key] for key in (*TABLES, "parameters")}))
    rows = {"anna": users.imported(b"", "")}
    with simulated.commits() as commits:
        list(apply_definitions(load(str(file)), simulated.broker, users, rows))
    assert len(commits) == 1
    counts = {table: len(simulated.store.definitions.rows(table)) for table in TABLES}
    assert counts == {"vhosts": 2, "users": 1, "permissions": 1, "policies": 2}


def test_a_large_file_is_applied_in_steps_each_one_commit(tmp_path: Path) -> None:
    simulated = SimulatedBroker()
    users = Users(simulated.store)
    queues = [{"name": f"q{number}", "vhost": "/", "durable": True} for number in range(300)]
    policy = {"name": "short", "vhost": "/", "pattern": "", "definition": {"max-length": 2}}
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"queues": queues, "policies": [policy]}))
    definitions = load(str(file))
    with simulated.commits() as commits:
        for _ in apply_definitions(definitions, simulated.broker, users, {}):
            assert len(commits) <= 2, "of the definitions and of the first queues"
            commits.clear()
    names = [queue["name"] for queue in queues]
    assert [name for name in simulated.vhost.queues if name.startswith("q")] == names
    # Once more, with other policies: all are applied, whichever task has a turn in between.
    policy["definition"] = {"max-length": 1}
    file.write_text(json.dumps({"queues": queues, "policies": [policy]}))
    deleted = iter(names[100:])
    for _ in apply_definitions(load(str(file)), simulated.broker, users, {}):
        name = next(deleted)
        if name in simulated.vhost.queues:
            simulated.vhost.delete_queue(simulated.vhost.queue(name))
        simulated.queue(f"new {name}")
    lengths = {queue.settings.max_length for queue in simulated.vhost.queues.values()}
    assert lengths == {1}


def test_a_step_compares_few_names_with_many_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    settings = Policies.queue_settings

    def noted(self: Policies, name: str, arguments: dict[str, Any]) -> Settings:
        compared[-1] += self.most_compared
        return settings(self, name, arguments)

    monkeypatch.setattr(Policies, "queue_settings", noted)
    simulated = SimulatedBroker()
    users = Users(simulated.store)
    policies = [
        {"name": f"p{number}", "vhost": "/", "pattern": "^a$", "definition": {"max-length": 2}}
        for number in range(150)
    ]
    queues = [{"name": f"q{number}", "vhost": "/"} for number in range(100)]
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"queues": queues, "policies": policies}))
    compared.append(0)
    compared.extend(0 for _ in apply_definitions(load(str(file)), simulated.broker, users, {}))
    assert len(simulated.vhost.queues) == len(queues)
    assert 1000 < max(compared) <= 2000


@pytest.mark.parametrize("steps", [100, 2])
def test_many_virtual_hosts_are_created_in_steps_though_not_all_are_taken(steps: int) -> None:
    """The client that asked for them may go away, and all of them are stored all the same."""
    broker = SimulatedBroker().broker
    names = [f"v{number}" for number in range(300)]
    policies = {(names[-1], False): [Policy("p", ".*", definition={"max-length": 5})]}
    defining = broker.defining(Defined(names, policies=policies))
    counts = [len(broker.vhosts) - 1 for _ in zip(range(steps), defining, strict=False)]
    assert counts[:2] == [64, 128]
    del defining
    assert len(broker.vhosts) == 1 + len(names)
    assert broker.vhosts[names[-1]].policies.queue_settings("q", {}).max_length == 5


def test_many_virtual_hosts_are_described_with_few_commits(tmp_path: Path) -> None:
    simulated = SimulatedBroker()
    users = Users(simulated.store)
    names = [f"v{number}" for number in range(70)]
    content = {
        "vhosts": [{"name": name, "description": f"host {name}"} for name in names],
        "policies": [
            {"name": "p", "vhost": name, "pattern": "", "definition": {"max-length": number}}
            for number, name in enumerate(names)
        ],
        "parameters": [
            *(
                {
                    "component": "vhost-limits",
                    "vhost": name,
                    "name": "limits",
                    "value": {"max-queues": 7},
                }
                for name in names
            ),
        ],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(content))
    with simulated.commits() as commits:
        for _ in apply_definitions(load(str(file)), simulated.broker, users, {}):
            assert len(commits) <= 2
            commits.clear()
    simulated.restart()
    for number, name in enumerate(names):
        vhost = simulated.broker.vhost(name)
        assert vhost.metadata == {"description": f"host {name}"}
        assert vhost.limits == {"max-queues": 7}
        (policy,) = vhost.policies.all(operator=False)
        assert policy.definition == {"max-length": number}


class ChangedMeanwhile(argon2.PasswordHasher):
    """A hasher during whose work the password is changed."""

    users: Users
    row: dict[str, Any]

    def verify(self, hash: str | bytes, password: str | bytes) -> Any:  # noqa: A002
        self.users.define("anna", self.row)
        return super().verify(hash, password)


def test_a_password_that_is_changed_while_it_is_checked_is_changed() -> None:
    users = Users(SimulatedBroker().store)
    users.define("anna", users.hashed(b"old"))
    users._hasher = slow = ChangedMeanwhile()
    slow.users, slow.row = users, users.hashed(b"new")
    users.check("anna", b"old")
    assert not users.is_known("anna", b"old")
    users._hasher = argon2.PasswordHasher()
    assert not users.check("anna", b"old")
    assert users.check("anna", b"new")
    assert users.is_known("anna", b"new")


def test_a_wrong_login_is_remembered_until_the_user_changes() -> None:
    users = Users(SimulatedBroker().store)
    users.define("anna", users.hashed(b"old"))
    for user in ("anna", "nobody"):
        assert not users.was_refused(user, b"new")
        assert not users.check(user, b"new")
        assert users.was_refused(user, b"new")
        users.define(user, users.hashed(b"new"))
        assert not users.was_refused(user, b"new")
        assert users.check(user, b"new")


def test_only_the_last_wrong_logins_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqpstore_server.logins.users, "_MAX_REFUSED", 2)
    users = Users(SimulatedBroker().store)
    users.define("anna", users.imported(b"", "rabbit_password_hashing_sha256"))
    for password in (b"a", b"b", b"c"):
        assert not users.check("anna", password)
    found = [users.was_refused("anna", password) for password in (b"a", b"b", b"c")]
    assert found == [False, True, True]
