"""Limits of users and virtual hosts: refused as in RabbitMQ, counted while they are used."""

import json
from collections.abc import Generator

import pika
import pytest
from pika.exceptions import ProbableAccessDeniedError

from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import WireClient
from tests.interop.pika_client import channel_closed_with, connect, connection_closed_with
from tests.waiting import wait_until

ALL = {"configure": ".*", "write": ".*", "read": ".*"}
DEFINITIONS = {
    "users": [
        {"name": "guest", "password": "guest"},
        {"name": "few", "password": "few", "limits": {"max-connections": 2, "max-channels": 3}},
        {"name": "none", "password": "none", "limits": {"max-connections": 0}},
        {"name": "any", "password": "any", "limits": {"max-connections": -1}},
    ],
    "vhosts": [{"name": "/"}, {"name": "small"}, {"name": "flat"}],
    "permissions": [
        {"user": user, "vhost": vhost, **ALL}
        for user in ("guest", "few", "none", "any")
        for vhost in ("/", "small", "flat")
    ],
    "parameters": [
        {"component": "vhost-limits", "name": "limits", "vhost": vhost, "value": value}
        for vhost, value in (
            ("small", {"max-connections": 2, "max-queues": 3}),
            ("flat", {"max-exchanges": 2, "max-bindings": 3}),
        )
    ],
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    (directory / "definitions.json").write_text(json.dumps(DEFINITIONS))
    config = directory / "amqpstore.toml"
    config.write_text(f'definitions = "{directory / "definitions.json"}"\n')
    store = str(directory / "store")
    with BrokerProcess(store, f"{store}.log", ["--config", str(config)]) as process:
        process.start()
        yield process
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr


def opened(broker: BrokerProcess, user: str, vhost: str = "/") -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, user)
    return connect(broker.url, credentials=credentials, virtual_host=vhost)


def refusal(broker: BrokerProcess, user: str, vhost: str = "/") -> str:
    """Return the reason why a connection is refused, always with 530."""
    with pytest.raises(ProbableAccessDeniedError) as caught:
        opened(broker, user, vhost)
    text = str(caught.value)
    assert "(530) " in text
    return text


def test_a_user_has_a_number_of_connections(limited: BrokerProcess) -> None:
    with opened(limited, "few") as first:
        with opened(limited, "few", "small"):
            assert "user connection limit (2) is reached" in refusal(limited, "few")
        opened(limited, "few").close()
        assert first.is_open
    assert "user connection limit (0) is reached" in refusal(limited, "none")
    for one in [opened(limited, "any") for _ in range(5)]:
        one.close()


def test_a_virtual_host_has_a_number_of_connections(limited: BrokerProcess) -> None:
    with opened(limited, "guest", "small"), opened(limited, "any", "small"):
        text = refusal(limited, "guest", "small")
        assert "access to vhost 'small' refused for user 'guest'" in text
        assert "connection limit (2) is reached" in text
        opened(limited, "guest").close()
    opened(limited, "guest", "small").close()


def test_a_user_has_a_number_of_channels_over_all_connections(limited: BrokerProcess) -> None:
    with opened(limited, "few") as one:
        two = opened(limited, "few")
        channels = [one.channel(), one.channel(), two.channel()]
        channels[0].close()
        one.channel()
        with connection_closed_with(530):
            two.channel()
        # Channels of the closed connection do not count any more.
        one.channel()
    opened(limited, "few").close()


def test_a_virtual_host_has_a_number_of_queues(limited: BrokerProcess) -> None:
    with opened(limited, "guest", "small") as connection:
        channel = connection.channel()
        names = [channel.queue_declare("", exclusive=True).method.queue for _ in range(3)]
        channel.queue_declare(names[0], passive=True)
        with channel_closed_with(406):
            channel.queue_declare("one-more")
        channel = connection.channel()
        channel.queue_delete(names[0])
        channel.queue_declare("one-more")
        channel.queue_delete("one-more")


def test_a_virtual_host_has_a_number_of_exchanges(limited: BrokerProcess) -> None:
    with opened(limited, "guest", "flat") as connection:
        channel = connection.channel()
        for name in ("one", "two", "two"):
            channel.exchange_declare(name, "topic")
        with channel_closed_with(406):
            channel.exchange_declare("three", "topic")
        channel = connection.channel()
        channel.exchange_delete("one")
        channel.exchange_declare("three", "topic")
        for name in ("two", "three"):
            channel.exchange_delete(name)


def test_a_virtual_host_has_a_number_of_bindings(limited: BrokerProcess) -> None:
    """Bindings to queues and to exchanges count; bindings of deleted queues and exchanges do
    not.
    """
    with opened(limited, "guest", "flat") as connection:
        channel = connection.channel()
        channel.exchange_declare("bound", "topic", durable=True)
        channel.exchange_bind("bound", "amq.topic", "a")
        for name in ("kept", "dropped"):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "bound", "a")
        channel.queue_bind("kept", "bound", "a")
        with channel_closed_with(406):
            channel.queue_bind("kept", "amq.direct", "b")
        channel = connection.channel()
        channel.queue_delete("dropped")
        channel.queue_bind("kept", "amq.direct", "b")
    limited.kill()
    limited.start()
    with opened(limited, "guest", "flat") as connection:
        channel = connection.channel()
        with channel_closed_with(406):
            channel.queue_bind("kept", "amq.direct", "c")
        channel = connection.channel()
        channel.queue_unbind("kept", "amq.direct", "b")
        channel.queue_bind("kept", "amq.direct", "c")
        channel.queue_delete("kept")
        channel.exchange_delete("bound")


def test_clients_that_vanish_are_counted_no_more(limited: BrokerProcess) -> None:
    url = limited.url.replace("%2F", "small")
    for _ in range(3):
        for client in [WireClient.connected(url, channels=1) for _ in range(2)]:
            client.abort()
        wait_until(lambda: _may_open(limited), "the places are free")


def _may_open(limited: BrokerProcess) -> bool:
    try:
        opened(limited, "guest", "small").close()
    except ProbableAccessDeniedError:
        return False
    return True


def test_the_limits_survive_a_restart(limited: BrokerProcess) -> None:
    limited.restart()
    assert "limit (0)" in refusal(limited, "none")
    with opened(limited, "guest", "small"), opened(limited, "guest", "small"):
        assert "limit (2)" in refusal(limited, "guest", "small")
