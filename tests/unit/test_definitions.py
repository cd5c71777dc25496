"""The definitions file: what RabbitMQ wrote is read, and what is wrong is named with its place.

`definitions/rabbitmq-3.10.8.json` is what `rabbitmqctl export_definitions` of that version wrote
of a broker with something of each kind in it, indented.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from amqpstore_server.administration import definitions
from amqpstore_server.administration.definitions import (
    BindingDefinition,
    Definitions,
    DefinitionsError,
    ExchangeDefinition,
    GlobalParameter,
    ParameterDefinition,
    Permission,
    PolicyDefinition,
    QueueDefinition,
    TopicPermission,
    User,
    definitions_of,
    load,
)
from amqpstore_server.protocol.bounds import check_fields
from tests.calls import Counts

EXPORTED = Path(__file__).parent / "definitions" / "rabbitmq-3.10.8.json"


def written(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "definitions.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def exported() -> Definitions:
    return load(str(EXPORTED))


def test_users_of_an_export_have_their_hashes_and_tags(exported: Definitions) -> None:
    """The password of clerk was set to "secret"."""
    assert [(user.name, user.tags) for user in exported.users] == [
        ("guest", ["administrator"]),
        ("clerk", ["monitoring", "policymaker"]),
    ]
    hashed = exported.users[1].password_hash
    assert hashed is not None
    assert hashed[4:] == hashlib.sha256(hashed[:4] + b"secret").digest()


def test_virtual_hosts_and_permissions_of_an_export(exported: Definitions) -> None:
    assert [vhost.name for vhost in exported.vhosts] == ["orders", "/"]
    assert exported.vhosts[0].all_metadata == {
        "description": "what customers ask for",
        "tags": ["production"],
    }
    assert exported.permissions[1] == Permission(
        user="clerk",
        vhost="orders",
        configure="^clerk-.*",
        write=".*",
        read=r"^(clerk-.*|amq\.topic)$",
    )
    assert len(exported.permissions) == 3
    assert exported.topic_permissions == [
        TopicPermission(
            user="clerk",
            vhost="orders",
            exchange="amq.topic",
            write=r"^{username}\..*",
            read=".*",
        )
    ]


def test_policies_of_an_export(exported: Definitions) -> None:
    unrouted, bounded = exported.policies
    assert (unrouted.name, unrouted.apply_to, unrouted.priority) == ("unrouted", "exchanges", 0)
    assert unrouted.policy.definition == {"alternate-exchange": "unrouted"}
    assert bounded == PolicyDefinition(
        vhost="orders",
        name="bounded",
        pattern="^clerk-",
        apply_to="queues",
        priority=3,
        settings={
            "dead-letter-exchange": "dead",
            "max-length": 1000,
            "message-ttl": 60000,
            "overflow": "reject-publish",
        },
    )


def test_an_operator_policy_is_one_though_its_settings_come_as_pairs(exported: Definitions) -> None:
    (roof,) = exported.operator_policies
    assert (roof.vhost, roof.name, roof.pattern) == ("orders", "roof", ".*")
    assert (roof.apply_to, roof.priority) == ("queues", 1)
    assert roof.policy.definition == {"max-length": 100000}


def test_the_topology_of_an_export(exported: Definitions) -> None:
    assert exported.queues[0] == QueueDefinition(
        vhost="orders",
        name="clerk-one",
        arguments={"x-max-priority": 5, "x-queue-type": "classic"},
    )
    assert [queue.name for queue in exported.queues] == ["clerk-one", "kept", "clerk-rest"]
    assert exported.exchanges[2] == ExchangeDefinition(
        vhost="orders",
        name="by kind",
        type="headers",
        arguments={"alternate-exchange": "unrouted"},
    )
    assert exported.bindings[1] == BindingDefinition(
        vhost="orders",
        source="in",
        destination="by kind",
        destination_type="exchange",
        routing_key="#",
        arguments={"of": True},
    )
    assert len(exported.bindings) == 4


def test_the_limits_of_a_virtual_host_are_read(caplog: pytest.LogCaptureFixture) -> None:
    (limits,) = load(str(EXPORTED)).vhost_limits
    assert limits.vhost == "orders"
    assert "max-connections" in limits.limits or "max-queues" in limits.limits
    assert caplog.records == []


def test_parameters_of_other_components_are_told_apart(tmp_path: Path) -> None:
    one = {"component": "federation", "vhost": "orders", "name": "f", "value": {"a": [1]}}
    shared = {"name": "cluster_name", "value": "n"}
    read = load(written(tmp_path, {"parameters": [one], "global_parameters": [shared]}))
    assert read.unknown_parameters == [
        ParameterDefinition(component="federation", vhost="orders", name="f", value={"a": [1]})
    ]
    assert read.global_parameters == [GlobalParameter(name="cluster_name", value="n")]
    assert (read.operator_policies, read.vhost_limits) == ([], [])


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert load(written(tmp_path, "\ufeff" + EXPORTED.read_text("utf-8"))) == load(str(EXPORTED))


def test_an_empty_file_defines_nothing_and_unknown_keys_are_noted(tmp_path: Path) -> None:
    assert load(written(tmp_path, {})) == Definitions()
    found = load(written(tmp_path, {"rabbit_version": "4.1", "new": [1]}))
    assert found == Definitions(notes=found.notes)
    assert found.notes == ["field 'new' of the definitions has no effect: nothing reads it"]


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    read = load(
        written(
            tmp_path,
            {
                "users": [{"name": "u", "password": "secret"}],
                "policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {}}],
                "queues": [{"vhost": "/", "name": "q"}],
                "exchanges": [{"vhost": "/", "name": "e", "type": "topic"}],
            },
        )
    )
    assert (read.users[0].password, read.users[0].tags) == ("secret", [])
    assert (read.policies[0].apply_to, read.policies[0].priority) == ("all", 0)
    queue, exchange = read.queues[0], read.exchanges[0]
    assert (queue.durable, queue.auto_delete, queue.arguments) == (True, False, {})
    assert (exchange.durable, exchange.auto_delete, exchange.internal) == (True, False, False)


def test_tags_may_be_one_text_with_commas(tmp_path: Path) -> None:
    user = {"name": "u", "password": "secret", "tags": "administrator, monitoring"}
    assert load(written(tmp_path, {"users": [user]})).users[0].tags == [
        "administrator",
        "monitoring",
    ]


def test_an_empty_hash_is_a_user_without_a_password(tmp_path: Path) -> None:
    read = load(written(tmp_path, {"users": [{"name": "u", "password_hash": "", "tags": ""}]}))
    assert (read.users[0].password, read.users[0].password_hash) == (None, b"")


def test_a_password_is_in_no_repr(exported: Definitions) -> None:
    user = User(name="u", password="secret")
    assert "secret" not in repr(user)
    assert "hash" not in repr(exported)


def user(**fields: Any) -> dict[str, Any]:
    return {"users": [{"name": "u", "password": "secret"}, {"name": "v", **fields}]}


def entry(kind: str, **fields: Any) -> dict[str, Any]:
    """A file with one entry that is right but for these fields; those that are None are not there.

    A key of a policy that has a `-` is written with a `_`.
    """
    right: dict[str, dict[str, Any]] = {
        "permissions": {"user": "u", "vhost": "/", "configure": "", "write": "", "read": ""},
        "topic_permissions": {"user": "u", "vhost": "/", "exchange": "", "write": "", "read": ""},
        "policies": {"vhost": "/", "name": "p", "pattern": "^q", "definition": {}},
        "queues": {"vhost": "/", "name": "q", "durable": True, "arguments": {}},
        "exchanges": {"vhost": "/", "name": "e", "type": "direct", "arguments": {}},
        "bindings": {
            "vhost": "/",
            "source": "e",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {},
        },
        "parameters": {"vhost": "/", "component": "operator_policy", "name": "p", "value": {}},
    }
    changed = {key.replace("apply_to", "apply-to"): value for key, value in fields.items()}
    merged = {**right[kind], **changed}
    return {kind: [{key: value for key, value in merged.items() if value is not None}]}


@pytest.mark.parametrize("kind", ["permissions", "policies", "queues", "exchanges", "bindings"])
def test_the_entries_that_are_changed_below_are_right_unchanged(tmp_path: Path, kind: str) -> None:
    assert len(getattr(load(written(tmp_path, entry(kind))), kind)) == 1


ALGORITHMS = "rabbit_password_hashing_sha256, rabbit_password_hashing_sha512"
OPERATOR_POLICY = {"pattern": ".*", "definition": {}}
LARGE = {"a": [[None] * 10] * 1500}
NESTED: dict[str, Any] = {}
for _ in range(140):
    NESTED = {"deeper": NESTED}


@pytest.mark.parametrize(
    ("content", "place", "said"),
    [
        ({"users": [{"password": "x"}]}, "$.users[0]", "required field `name`"),
        (user(), "$.users[1]", "either `password` or `password_hash`"),
        (user(password="x", password_hash=""), "$.users[1]", "either `password` or"),
        (user(password=""), "$.users[1]", "`password` that is not empty"),
        (user(password_hash="no base 64"), "$.users[1].password_hash", "base64"),
        (user(password_hash="AAAA"), "$.users[1]", "has 3 bytes; expected 36"),
        (user(password_hash="", hashing_algorithm="md5"), "$.users[1]", ALGORITHMS),
        (user(password="x", tags=7), "$.users[1].tags", "Expected `str | array`"),
        ({"vhosts": [{"name": ""}]}, "$.vhosts[0]", "`name` that is not empty"),
        ({"vhosts": [{"name": "v" * 256}]}, "$.vhosts[0]", "at most 255 bytes"),
        ({"vhosts": [{"name": "a\0b"}]}, "$.vhosts[0]", "`name` has a NUL"),
        (user(name="u" * 256, password="x"), "$.users[1]", "at most 255 bytes"),
        (entry("permissions", user="u" * 256), "$.permissions[0]", "at most 255 bytes"),
        (entry("policies", name="p" * 256), "$.policies[0]", "at most 255 bytes"),
        (entry("policies", priority=1 << 64), "$.policies[0]", "at most 64 bits"),
        (entry("queues", arguments=NESTED), "$.queues[0]", "nested more than 126 deep"),
        (entry("policies", definition=NESTED), "$.policies[0]", "nested more than 126 deep"),
        (entry("permissions", write="("), "$.permissions[0]", "'(' is not a regular expression"),
        (entry("permissions", read="^(?=x)"), "$.permissions[0]", "no look-ahead"),
        (entry("permissions", read=7), "$.permissions[0].read", "Expected `str`"),
        (entry("permissions", configure=None), "$.permissions[0]", "`configure`"),
        (entry("topic_permissions", read="*"), "$.topic_permissions[0]", "'*' is not a regular"),
        (entry("policies", pattern="[z-a]"), "$.policies[0]", "'[z-a]' is not a regular"),
        (entry("policies", apply_to="some"), "$.policies[0]", "one of all, queues, classic_q"),
        (entry("policies", priority="1"), "$.policies[0].priority", "Expected `int`"),
        (entry("policies", definition=[["one"]]), "$.policies[0].definition[0]", "length 2"),
        (entry("queues", arguments=LARGE), "$.queues[0]", "more than 16384 entries"),
        (entry("exchanges", arguments=LARGE), "$.exchanges[0]", "more than 16384 entries"),
        (entry("bindings", arguments=LARGE), "$.bindings[0]", "more than 16384 entries"),
        (entry("policies", definition=LARGE), "$.policies[0]", "more than 16384 entries"),
        (entry("policies", definition={"a": 1 << 63}), "$.policies[0]", "at most 64 bits"),
        (entry("queues", durable="yes"), "$.queues[0].durable", "Expected `bool`"),
        (entry("queues", name="é" * 128), "$.queues[0]", "at most 255 bytes"),
        (entry("queues", name=""), "$.queues[0]", "`name` that is not empty"),
        (entry("queues", arguments=[1]), "$.queues[0].arguments", "Expected `object`"),
        (entry("queues", arguments={"a": [{"b": 1 << 63}]}), "$.queues[0]", "at most 64 bits"),
        (entry("exchanges", type=None), "$.exchanges[0]", "required field `type`"),
        (entry("bindings", destination_type="topic"), "$.bindings[0]", "one of queue, exchange"),
        (entry("bindings", routing_key="k" * 256), "$.bindings[0]", "`routing_key` is too long"),
        (entry("parameters", component=None), "$.parameters[0]", "`component`"),
        (entry("parameters"), "$.parameters[0].value", "required field `pattern`"),
        (
            entry("parameters", value={**OPERATOR_POLICY, "priority": "high"}),
            "$.parameters[0].value.priority",
            "Expected `int`",
        ),
        (
            entry("parameters", value={**OPERATOR_POLICY, "apply-to": "none"}),
            "$.parameters[0].value",
            "one of all",
        ),
    ],
)
def test_what_is_wrong_is_left_out_with_the_place_and_what_is_expected(
    tmp_path: Path, content: Any, place: str, said: str
) -> None:
    (left_out,) = load(written(tmp_path, content)).left_out
    assert said in left_out.reason
    assert left_out.reason.endswith(f" - at `{place}`")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "Expected `object`, got `array`"),
        ({"users": {}}, "Expected `array`, got `object` - at `$.users`"),
    ],
)
def test_what_are_no_definitions_is_refused_with_the_file(
    tmp_path: Path, content: Any, said: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DefinitionsError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {said}"


def test_a_file_is_neither_endless_nor_larger_than_memory(tmp_path: Path) -> None:
    most = 1 << 20
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(DefinitionsError, match="it is not a regular file"):
        load(str(pipe))
    assert load(written(tmp_path, "{}" + " " * (most - 2)), most) is not None
    with pytest.raises(DefinitionsError, match="it has more than 1 MiB"):
        load(written(tmp_path, "{}" + " " * most), most)


SURROGATE = r'{"vhosts": [{"name": "\ud800"}]}'


def test_a_file_has_a_limited_number_of_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "MAX_DEFINITION_ENTRIES", 20)
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps({"queues": [{"name": "q", "vhost": "/"}] * 6, "x": 1}))
    assert len(load(str(path)).queues) == 6
    path.write_text(json.dumps({"queues": [{"name": "q", "vhost": "/"}] * 6, "x": 1, "y": 1}))
    with pytest.raises(DefinitionsError, match=r"definitions.json: it has more than 20 entries"):
        load(str(path))


@pytest.mark.parametrize(
    "text", ["", "{", SURROGATE, "users: []", '{"users": []} more', "[" * 100_000]
)
def test_what_is_no_json_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(DefinitionsError, match=r"definitions\.json is not JSON"):
        load(written(tmp_path, text))


def test_what_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_bytes(b'{"users": [{"name": "\xff"}]}')
    with pytest.raises(DefinitionsError, match=r"definitions\.json is not JSON"):
        load(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DefinitionsError, match=r"nowhere\.json: No such file"):
        load(str(tmp_path / "nowhere.json"))


def test_a_policy_for_streams_is_taken() -> None:
    """The policy applies to nothing here, and the rest of the file is not refused for it."""
    (policy,) = definitions_of(entry("policies", apply_to="streams"), "a test").policies
    assert policy.apply_to == "streams"


def test_what_is_too_large_is_refused_before_a_look_at_all_of_it() -> None:
    """The API checks the arguments of a body with it, and all clients wait meanwhile."""
    table = {"a": [[number] for number in range(100_000)]}
    counts = Counts()
    with pytest.raises(ValueError, match="more than 16384 entries"), counts:
        check_fields("arguments", table)
    assert counts.python.total() + counts.built_in.total() < 100
