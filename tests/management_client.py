"""A client of the management API, and the broker process that it asks."""

import base64
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import requests

from tests.broker_process import BrokerProcess
from tests.quick_passwords import QuickHasher
from tests.waiting import wait_until

_URL = re.compile(r'event="management API" url=(https?://\S+)')


PASSWORD = {
    "password_hash": base64.b64encode(QuickHasher().hash("password").encode()).decode(),
    "hashing_algorithm": "argon2",
}
"""The body that puts a user whose password is `password`, with a hash that takes no time to
check.
"""


def managed(broker: BrokerProcess) -> BrokerProcess:
    """Have a broker that was not started yet serve the API, on a port that the kernel picks."""
    broker.environment["AMQPSTORE_MANAGEMENT_LISTEN"] = "127.0.0.1:0"
    return broker


@contextmanager
def managed_broker(directory: Path) -> Generator[BrokerProcess]:
    """Run a broker with the API, in an empty directory, until the block ends. It may not have
    logged a traceback.
    """
    with managed(BrokerProcess(str(directory / "data"), str(directory / "log"))) as process:
        process.start()
        yield process
        assert "Traceback" not in process.stderr


def management_url(broker: BrokerProcess) -> str:
    """The URL of a running broker's API."""
    wait_until(lambda: _URL.search(broker.stderr) is not None, "the management API")
    *_, url = _URL.findall(broker.stderr)  # of the last start
    return str(url)


def keep_management_port(broker: BrokerProcess) -> None:
    """Have a running broker use the same port in its next run."""
    port = urlsplit(management_url(broker)).port
    broker.environment["AMQPSTORE_MANAGEMENT_LISTEN"] = f"127.0.0.1:{port}"


class ManagementClient:
    """Sends requests as a user. What is returned is the JSON of the answer; None without one."""

    def __init__(self, url: str, user: str = "guest", password: str = "guest") -> None:
        self.url = url
        self.session = requests.Session()
        # No proxy and no .netrc of this machine.
        self.session.trust_env = False
        self.session.auth = (user, password)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.session.close()

    def as_user(self, user: str, password: str = "password") -> "ManagementClient":
        """Return another user's client of the same API."""
        return ManagementClient(self.url, user, password)

    def with_token(self, token: str) -> "ManagementClient":
        """Return another client of the same API, with a token instead of a password."""
        client = ManagementClient(self.url)
        client.session.auth = None
        client.session.headers["authorization"] = f"Bearer {token}"
        return client

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request, whatever the answer."""
        return self.session.request(
            method, f"{self.url}/api{path}", timeout=60, allow_redirects=False, **options
        )

    def expect(self, status: int, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send a request whose answer must have this status."""
        if body is not None:
            options["json"] = body
        answer = self.request(method, path, **options)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def get(self, path: str, **parameters: Any) -> Any:
        return self.expect(200, "GET", path, params=parameters)

    def put(self, path: str, body: Any = None, status: int = 201) -> Any:
        return self.expect(status, "PUT", path, {} if body is None else body)

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        return self.expect(status, "POST", path, {} if body is None else body)

    def delete(self, path: str, body: Any = None, status: int = 204, **options: Any) -> Any:
        return self.expect(status, "DELETE", path, body, **options)
