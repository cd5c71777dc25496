"""Tests of the names of queues whose definitions cannot be believed."""

from typing import Any

import pytest

from amqpstore_tools.repair.names import definition_of, mend_definitions

ORDERS = definition_of("/", "orders")


@pytest.mark.parametrize(
    "odd",
    [
        *(None, 0, "", b"x", [], {}, {**ORDERS, "name": ["x"]}, {**ORDERS, "vhost": {}}),
        *({"level": 1}, {**ORDERS, "level": []}, {"vhost": "/", "level": 1}),
    ],
)
def test_what_says_no_name_is_named_after_its_id(odd: Any) -> None:
    definitions = {1: ORDERS, 2: odd}
    vhosts: dict[str, Any] = {"/": {}}
    assert mend_definitions(definitions, (), vhosts) == {2}
    assert definitions == {1: ORDERS, 2: definition_of("/", "amq.recovered.2")}
    assert vhosts == {"/": {}}


@pytest.mark.parametrize("odd", [None, 256, {}, {"name": []}])
def test_what_the_queue_of_a_transaction_says_is_left(odd: Any) -> None:
    definitions = {1: ORDERS, 2: odd}
    assert mend_definitions(definitions, {2}, {"/": {}}) == set()
    assert definitions[2] == odd


def test_a_level_without_its_queue_becomes_that_queue() -> None:
    definitions: dict[int, Any] = {2: {"vhost": "other", "name": "orders", "level": 3}}
    vhosts: dict[str, Any] = {}
    assert mend_definitions(definitions, (), vhosts) == {2}
    assert definitions == {2: definition_of("other", "orders", {"x-max-priority": 3})}
    assert vhosts == {"other": {}}
