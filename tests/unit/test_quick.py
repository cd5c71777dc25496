"""Tests of which tests `make quick` runs for what was changed."""

from tests.quick import chosen, module_of, unit_tests

TESTS = {
    "tests/unit/broker/test_dispatch.py": frozenset({"amqpstore_server.broker.queues.dispatch"}),
    "tests/unit/broker/test_crowds.py": frozenset({"tests.simulated_broker"}),
    "tests/unit/engine/test_log.py": frozenset({"amqpstore.log.log", "amqpstore"}),
    "tests/unit/server/test_loop.py": frozenset({"amqpstore_server.loop.rounds"}),
}


def test_what_imports_a_changed_module_or_has_its_name_is_run() -> None:
    queues = "server/amqpstore_server/broker/queues"
    assert chosen([f"{queues}/dispatch.py"], TESTS) == ["tests/unit/broker/test_dispatch.py"]
    assert chosen([f"{queues}/crowds.py"], TESTS) == ["tests/unit/broker/test_crowds.py"]
    assert chosen(["tests/simulated_broker.py"], TESTS) == ["tests/unit/broker/test_crowds.py"]


def test_where_there_is_no_such_test_the_room_is_run() -> None:
    found = chosen(["server/amqpstore_server/broker/vhost.py"], TESTS)
    assert found == ["tests/unit/broker/test_crowds.py", "tests/unit/broker/test_dispatch.py"]
    # Rooms without a folder of their own.
    assert chosen(["amqpstore/log/batch.py"], TESTS) == ["tests/unit/engine/test_log.py"]
    share = "server/amqpstore_server/loop/share.py"
    assert chosen([share], TESTS) == ["tests/unit/server/test_loop.py"]


def test_changed_tests_are_run_and_documents_run_none() -> None:
    changed = ["README.md", "tests/unit/engine/test_log.py", "tests/interop/test_pika.py"]
    assert chosen(changed, TESTS) == ["tests/unit/engine/test_log.py"]


def test_modules_have_their_names() -> None:
    assert module_of("amqpstore/__init__.py") == "amqpstore"
    assert module_of("tools/amqpstore_tools/verbs/copy.py") == "amqpstore_tools.verbs.copy"
    assert module_of("tests/fuzz/forged/__init__.py") == "tests.fuzz.forged"
    assert module_of("setup.py") == module_of("README.md") == ""


def test_the_tests_that_there_are_are_found() -> None:
    dispatch = "server/amqpstore_server/broker/queues/dispatch.py"
    assert "tests/unit/broker/test_dispatch.py" in chosen([dispatch], unit_tests())
