"""Fixtures for rules that are tested with pika, or that another broker cannot be held to."""

import pika
import pytest

from tests.interop.conftest import channel as channel
from tests.interop.conftest import connection as connection
from tests.interop.conftest import connections as connections
from tests.interop.conftest import open_connection as open_connection
from tests.interop.conftest import other_channel as other_channel


@pytest.fixture
def ours_alone(connection: pika.BlockingConnection) -> None:
    """Skip a rule for other brokers, where PROTOCOL.md promises more than they do, or something
    else.
    """
    properties = vars(connection)["_impl"].server_properties
    if properties["product"] != "amqpstore":
        pytest.skip(f"{properties['product']} {properties.get('version')} makes no such promise")
