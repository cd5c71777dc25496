"""Fixtures for tests that use pika."""

from collections.abc import Callable, Generator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.pika_client import connect

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def connections() -> Generator[list[pika.BlockingConnection]]:
    """Connections to close when the test ends, however it ends."""
    opened: list[pika.BlockingConnection] = []
    yield opened
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def open_connection(url: str, connections: list[pika.BlockingConnection]) -> Connect:
    """Open another connection to the module's broker; keywords are pika's parameters."""

    def opener(**settings: object) -> pika.BlockingConnection:
        connection = connect(url, **settings)
        connections.append(connection)
        return connection

    return opener


@pytest.fixture
def connection(open_connection: Connect) -> pika.BlockingConnection:
    return open_connection()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def other_channel(open_connection: Connect) -> BlockingChannel:
    """A channel of a second connection."""
    return open_connection().channel()
