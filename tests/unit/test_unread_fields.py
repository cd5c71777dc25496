"""Fields of a file of definitions that nothing reads are noted, by every road."""

import base64
import logging
from typing import Any

import pytest

from amqpstore_server.administration.definitions import QueueDefinition, definitions_of
from amqpstore_server.administration.exporting import of_vhost
from amqpstore_server.administration.importing import apply_definitions, notes_of
from amqpstore_server.administration.unread_fields import UnreadFields
from amqpstore_server.logins.users import Users
from tests.simulated_broker import SimulatedBroker

DEFINED = {"pattern": "^p", "definition": {"max-length": 5}}
RABBITMQ = {
    "rabbit_version": "4.1.0",
    "rabbitmq_version": "4.1.0",
    "product_name": "RabbitMQ",
    "product_version": "4.1.0",
    "rabbitmq_definition_format": "cluster",
    "original_cluster_name": "rabbit@h",
    "explanation": "Definitions of cluster 'rabbit@h'",
    "users": [
        {
            "name": "guest",
            "password_hash": base64.b64encode(b"s" * 36).decode(),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["administrator"],
            "limits": {},
        }
    ],
    "vhosts": [
        {
            "name": "/",
            "description": "d",
            "metadata": {"description": "d", "tags": [], "default_queue_type": "classic"},
            "tags": [],
            "default_queue_type": "classic",
            "limits": [],
        }
    ],
    "permissions": [{"user": "guest", "vhost": "/", "configure": "", "write": "", "read": ""}],
    "topic_permissions": [],
    "parameters": [{"component": "operator_policy", "vhost": "/", "name": "o", "value": DEFINED}],
    "global_parameters": [{"name": "cluster_tags", "value": []}],
    "policies": [{"vhost": "/", "name": "p", "apply-to": "queues", "priority": 0, **DEFINED}],
    "queues": [
        {
            "name": "q1",
            "vhost": "/",
            "type": "quorum",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum"},
        },
        {"name": "q2", "vhost": "/", "type": "classic", "durable": True, "arguments": {}},
    ],
    "exchanges": [{"name": "x", "vhost": "/", "type": "direct", "internal": False}],
    "bindings": [],
}
"""Definitions as RabbitMQ writes them."""

MISSPELT = {
    "quues": [],
    "vhosts": [{"name": "/", "limits": {"max-queues": 5}, "metadata": {"colour": "red"}}],
    "queues": [
        {"name": f"q{number}", "vhost": "/", "arguements": {}, "type": "quorum"}
        for number in (1, 2, 3)
    ],
    "policies": [{"vhost": "/", "name": "p", "apply_to": "queues", **DEFINED}],
    "parameters": [
        {
            "component": "operator_policy",
            "vhost": "/",
            "name": "o",
            "value": {**DEFINED, "prioritty": 5},
        }
    ],
}
NOTES = (
    "field 'quues' of the definitions has no effect: is 'queues' meant?",
    (
        "field 'limits' of vhost '/' has no effect: the parameter 'limits' of the component "
        "'vhost-limits' says them"
    ),
    "field 'apply_to' of policy 'p' has no effect: is 'apply-to' meant?",
    "field 'arguements' of queue 'q1' has no effect: is 'arguments' meant?; so have 2 more",
    "field 'type' of queue 'q1' has no effect: the argument 'x-queue-type' says it; so have 2 more",
    "field 'colour' of metadata of vhost '/' has no effect: nothing reads it",
    "field 'prioritty' of operator policy 'o' has no effect: is 'priority' meant?",
)


def test_what_rabbitmq_writes_needs_no_note() -> None:
    definitions = definitions_of(RABBITMQ, "file")
    assert (definitions.left_out, notes_of(definitions)) == ([], [])
    of_one = {
        "rabbit_version": "4.1.0",
        "original_vhost_name": "a",
        "limits": [],
        "metadata": {},
        "explanation": "of one",
        "queues": [{"name": "q", "type": "classic"}],
    }
    content, notes = of_vhost(of_one, "b")
    assert (notes, definitions_of(content, "file").notes) == ([], [])


def test_what_nothing_reads_is_noted_once_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    simulated = SimulatedBroker()
    definitions = definitions_of(MISSPELT, "file")
    assert definitions.notes == [*NOTES]
    assert list(apply_definitions(definitions, simulated.broker, Users(simulated.store), {}))
    assert notes_of(definitions) == [*NOTES]
    logged = [one.note for one in caplog.records if hasattr(one, "note")]
    assert [note for note in NOTES if note not in logged] == []


def test_what_a_file_of_all_says_to_one_virtual_host_is_noted() -> None:
    content, notes = of_vhost({**RABBITMQ, "quues": []}, "other")
    assert notes == [
        "field 'users' has no effect: the definitions are of vhost 'other' alone",
        "field 'vhosts' has no effect: the definitions are of vhost 'other' alone",
        "field 'permissions' has no effect: the definitions are of vhost 'other' alone",
        "field 'vhost' of parameters has no effect: all are defined in vhost 'other', none in '/'",
        "field 'global_parameters' has no effect: the definitions are of vhost 'other' alone",
        *(
            f"field 'vhost' of {kind} has no effect: all are defined in vhost 'other', none in '/'"
            for kind in ("policies", "queues", "exchanges")
        ),
    ]
    assert {queue["vhost"] for queue in content["queues"]} == {"other"}
    assert definitions_of(content, "file").notes == [NOTES[0]]


def test_an_empty_table_may_be_a_list_as_over_the_api() -> None:
    lists: dict[str, Any] = {
        "queues": [{"name": "q", "vhost": "/", "arguments": []}],
        "exchanges": [{"name": "e", "vhost": "/", "type": "fanout", "arguments": []}],
        "users": [{"name": "u", "password_hash": "", "tags": ["own", "monitoring"]}],
    }
    definitions = definitions_of(lists, "file")
    assert definitions.left_out == []
    assert definitions.queues[0].arguments == {}
    assert definitions.exchanges[0].arguments == {}
    (note,) = notes_of(definitions)
    assert note.startswith("tag 'own' of a user has no effect: there are administrator")
    lists["queues"][0]["arguments"] = [1]
    assert len(definitions_of(lists, "file").left_out) == 1


def test_of_very_many_fields_the_first_are_noted() -> None:
    unread = UnreadFields()
    entry: dict[str, Any] = {f"{number}" * 200: 1 for number in range(2000)}
    unread.look("queue", QueueDefinition, {"name": "q", **entry})
    assert len(unread.notes()) == 1000
    assert max(map(len, unread.notes())) < 200
