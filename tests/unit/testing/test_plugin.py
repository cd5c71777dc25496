"""The pytest plug-in, as an application's tests have it: found by its entry point."""

import os
import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

README = Path(__file__).parents[3] / "tools" / "amqpstore_tools" / "testing" / "README.md"
SECTION = re.compile(
    r"^# Test your application with it\n.*?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL
)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of this run's pytest from the other one."""
    for variable in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(variable)


def test_the_readmes_example_passes(pytester: pytest.Pytester) -> None:
    example = SECTION.search(README.read_text("utf-8"))
    assert example is not None
    pytester.makepyfile(example[1])
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_fixtures_are_listed(pytester: pytest.Pytester) -> None:
    listed = pytester.runpytest_subprocess("--fixtures", "-q")
    listed.stdout.fnmatch_lines(["amqp_broker_factory -- *", "amqp_broker -- *"])


def test_nothing_of_the_broker_is_imported_before_a_fixture_is_used(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_before():
            ours = ("amqpstore", "amqpstore_server", "amqpstore_tools.testing.broker")
            heavy = ("trio", "rich", *ours)
            assert [name for name in heavy if name in sys.modules] == []

        def test_after(amqp_broker):
            assert "amqpstore_server.app" in sys.modules
        """
    )
    # Others' plug-ins import what they like.
    result = pytester.runpytest_subprocess(
        "-p", "no:trio", "-p", "no:anyio", "-p", "no:schemathesis"
    )
    result.assert_outcomes(passed=2)


def test_a_failed_test_shows_what_its_brokers_logged(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pika

        def test_fails(amqp_broker):
            pika.BlockingConnection(pika.URLParameters(amqp_broker.url)).close()
            amqp_broker.queues()
            assert not "the application's own fault"

        def test_passes(amqp_broker):
            pika.BlockingConnection(pika.URLParameters(amqp_broker.url)).close()
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*- amqp broker * -*", '0.000 level=info event="connection accepted" *']
    )


def test_a_broker_that_fails_fails_the_test_and_shows_its_log(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pika

        def test_disk_fails(amqp_broker):
            channel = pika.BlockingConnection(pika.URLParameters(amqp_broker.url)).channel()
            channel.queue_declare("orders", durable=True)
            amqp_broker.disk.sync_file = None
            channel.basic_publish("", "orders", b"one", pika.BasicProperties(delivery_mode=2))
            while amqp_broker.is_running:
                pass

        def test_next_is_not_affected(amqp_broker):
            assert amqp_broker.queues() == []
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*BrokerFailedError: the broker failed: *DurabilityError*"])
    result.stdout.fnmatch_lines(['0.000 level=info event="connection accepted" *'])
