"""amqpstorm's own functional tests, which its package brings, against a broker at any port.

    python -m tests.interop.amqpstorm_suite amqp://guest:guest@127.0.0.1:5672/%2F

They take for granted that the port is 5672, and that a management API is there, by which they
delete what they made: both are put right here before they are imported. Those that test the API
itself are left out.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import amqpstorm
import pytest

MODULES = ("basic", "exchange", "generic", "legacy", "queue", "reliability", "tx")


def prepare(url: str) -> str:
    """Have the suite use the broker. Returns the folder that it is in."""
    parts = urlsplit(url)
    user, password = str(parts.username), str(parts.password)
    os.environ.update(
        AMQP_HOST=str(parts.hostname), AMQP_USERNAME=user, AMQP_PASSWORD=password, AMQP_URI=url
    )
    from amqpstorm.tests.functional import utility  # reads the environment

    suite: Any = utility
    client: Any = amqpstorm

    class Connection(client.Connection):  # type: ignore[misc] # whose types are not all there
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **{"port": parts.port, **settings})

    def clean(names: Sequence[str], queue: bool = False, exchange: bool = False) -> None:
        with (
            Connection(parts.hostname, user, password) as connection,
            connection.channel() as channel,
        ):
            for name in names:
                if queue:
                    channel.queue.delete(name)
                if exchange:
                    channel.exchange.delete(name)

    client.Connection = suite.Connection = Connection
    suite.clean = clean
    return os.path.dirname(str(suite.__file__))


if __name__ == "__main__":
    folder = prepare(sys.argv[1])
    files = [os.path.join(folder, f"test_{module}.py") for module in MODULES]
    options = ["-q", "-c", os.devnull, "--rootdir", os.getcwd(), "-p", "no:cacheprovider"]
    sys.exit(pytest.main([*options, *files]))
