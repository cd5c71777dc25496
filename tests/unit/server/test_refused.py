"""Input that is larger than the code has room for is refused: requests to the management API, files
that an operator wrote, tokens and hashes.

Each limit is in `conformance/acts.toml`, those of clients in the table of server/SECURITY.md.
"""

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from amqpstore_server.administration.definitions import DefinitionsError, load
from amqpstore_server.administration.framing import LENGTH, MAX_BYTES, address_in
from amqpstore_server.broker.rights.scopes import MAX_SCOPES, TokenError, scopes_and_tags
from amqpstore_server.broker.rules.settings import MAX_PURGE_UNDO_S
from amqpstore_server.config.config import Config
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.config.sources import ConfigSources
from amqpstore_server.logins import certificates
from amqpstore_server.logins.token_keys import KeysError, KeySource
from amqpstore_server.protocol import bounds
from amqpstore_server.reports import reports
from tests.served import TIMEOUT_S, ServedApp

MS = (1 << 52) + 1
LONG = "k" * 256


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with ServedApp(str(tmp_path_factory.mktemp("refused") / "store")) as found:
        late = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "fanout"}}
        for path, body in (
            ("/queues/%2F/q", {}),
            ("/exchanges/%2F/late", late),
            ("/exchanges/%2F/hashed", {"type": "x-consistent-hash"}),
        ):
            assert found.request("PUT", path, body).ok
        yield found


def hashed(memory_kib: int = 8, rounds: int = 1, lanes: int = 1) -> dict[str, str]:
    rest = base64.b64encode(bytes(16)).decode().rstrip("=")
    text = f"$argon2id$v=19$m={memory_kib},t={rounds},p={lanes}${rest}${rest}"
    encoded = base64.b64encode(text.encode()).decode()
    return {"password_hash": encoded, "hashing_algorithm": "argon2", "tags": ""}


def with_argument(name: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"arguments": {name: value}, **more}


def message(key: str = "q", **properties: Any) -> dict[str, Any]:
    return {
        "properties": properties,
        "routing_key": key,
        "payload": "x",
        "payload_encoding": "string",
    }


QUEUE = "/queues/%2F/new"
PUBLISH = "/exchanges/%2F/amq.default/publish"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/queues/%2F/q/messages?limit=1001", None),
        ("GET", f"/queues/%2F/q/messages?max_payload_bytes={(1 << 20) + 1}", None),
        ("GET", "/queues/%2F/q/messages?max_scanned=10000001", None),
        ("POST", "/queues/%2F/q/messages/move", {"positions": [[1, 0]] * 10_001, "to": "q"}),
        (
            "POST",
            "/queues/%2F/q/messages/delete",
            {"filter": {"headers": dict.fromkeys(map(str, range(51)), 1)}},
        ),
        ("GET", "/queues?page=1&page_size=501", None),
        ("GET", f"/queues?page={(1 << 31) + 1}", None),
        ("GET", f"/queues?page=1&use_regex=true&name={'.' * 1001}", None),
        ("GET", "/overview?lengths_age=2001&lengths_incr=1", None),
        ("POST", PUBLISH, message(LONG)),
        ("POST", PUBLISH, message(expiration=str(MS))),
        ("POST", "/exchanges/%2F/late/publish", message(headers={"x-delay": MS})),
        ("POST", "/bindings/%2F/e/amq.topic/q/q", {"routing_key": LONG}),
        ("POST", "/bindings/%2F/e/hashed/q/q", {"routing_key": "1000001"}),
        ("PUT", f"/queues/%2F/{LONG}", {}),
        ("PUT", QUEUE, with_argument("x-message-ttl", MS)),
        ("PUT", QUEUE, with_argument("x-max-length", 1 << 63)),
        ("PUT", QUEUE, with_argument("x-dead-letter-routing-key", LONG)),
        ("PUT", QUEUE, with_argument("x-purge-undo-seconds", MAX_PURGE_UNDO_S + 1)),
        (
            "PUT",
            "/exchanges/%2F/new",
            with_argument("x-recent-history-length", 100_001, type="x-recent-history"),
        ),
        ("PUT", "/users/new", hashed(memory_kib=(1 << 18) + 1)),
        ("PUT", "/users/new", hashed(rounds=17)),
        ("PUT", "/users/new", hashed(memory_kib=1024, lanes=17)),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_request_beyond_a_limit_is_refused(
    served: ServedApp, method: str, path: str, body: Any
) -> None:
    answer = served.request(method, path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["reason"]


def test_the_hash_that_is_refused_is_right_otherwise(served: ServedApp) -> None:
    assert served.request("PUT", "/users/new", hashed()).status_code == 201


def test_a_large_form_is_refused(served: ServedApp) -> None:
    for form in (f"user={'x' * (1 << 20)}", "&".join(f"field{n}=" for n in range(2001))):
        answer = requests.post(
            f"{served.api}/login",
            data=form,
            headers={"content-type": "application/x-www-form-urlencoded"},
            timeout=TIMEOUT_S,
        )
        assert answer.status_code == 400, answer.text


def test_a_large_form_of_who_is_logged_in_is_refused(served: ServedApp) -> None:
    """A form of a logged-in user has a higher limit than one that any client may send."""
    with requests.Session() as page:
        page.trust_env = False
        login = {"user": "guest", "password": "guest"}
        answer = page.post(f"{served.api}/login", login, allow_redirects=False, timeout=TIMEOUT_S)
        assert answer.status_code == 303, answer.text
        form = f"{served.api}/act/PUT/api/queues/%2F/of-a-form"
        for size, status in ((1 << 19, 303), (1 << 20, 400)):
            answer = page.post(
                form,
                data=f"durable=true&said=Added&x={'x' * size}",
                headers={"content-type": "application/x-www-form-urlencoded"},
                allow_redirects=False,
                timeout=TIMEOUT_S,
            )
            assert answer.status_code == status, answer.text


def test_a_get_ends_where_properties_are_long(
    served: ServedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of small messages may have gigabytes of headers."""
    monkeypatch.setattr(bounds, "MAX_PROPERTIES_BYTES", 250)
    for _ in range(8):
        published = served.request("POST", PUBLISH, message(headers={"x": "y" * 100}))
        assert published.json() == {"routed": True}
    asked = {"count": 8, "ackmode": "ack_requeue_false", "encoding": "auto"}
    got = [len(served.request("POST", "/queues/%2F/q/get", asked).json()) for _ in range(4)]
    assert got == [3, 3, 2, 0]


def test_a_large_request_of_an_operator_is_not_read(served: ServedApp) -> None:
    with (
        address_in(served.config.data) as address,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
    ):
        client.settimeout(TIMEOUT_S)
        client.connect(address)
        client.sendall(LENGTH.pack(MAX_BYTES + 1))
        assert client.recv(1) == b""


def test_a_token_has_a_number_of_scopes() -> None:
    """Scopes beyond a limit must not be left out silently: the token is refused."""
    many = [f"read:*/{number}" for number in range(MAX_SCOPES)]
    assert len(scopes_and_tags(many)[0]) == MAX_SCOPES
    with pytest.raises(TokenError, match=f"more than {MAX_SCOPES} scopes"):
        scopes_and_tags([*many, "read:*/*"])


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file without blocks, larger than any that is read."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    return path


def test_a_large_configuration_is_refused(large: Path) -> None:
    with pytest.raises(ConfigError, match="more than 1024 KiB"):
        ConfigSources(str(large)).load()


def test_a_large_file_of_definitions_is_refused(large: Path) -> None:
    with pytest.raises(DefinitionsError, match="more than 64 MiB"):
        load(str(large))


def test_a_large_list_of_revoked_certificates_is_refused(large: Path) -> None:
    with pytest.raises(ConfigError, match="more than 65536 KiB"):
        certificates._revocations(str(large))


def test_a_directory_with_too_many_certificates_is_refused(tmp_path: Path) -> None:
    for number in range(1001):
        (tmp_path / f"{number}.crt").touch()
    config = Config(tls_certificate="a.pem", tls_certificates=str(tmp_path))
    with pytest.raises(ConfigError, match="more than 1000 certificates"):
        list(certificates._files(config))


def test_a_large_report_is_not_shown(large: Path, tmp_path: Path) -> None:
    name = "recovery-20260101T000000.000Z.json"
    large.rename(tmp_path / name)
    with pytest.raises(reports.ReportError, match="more than 16 MiB"):
        reports._read(str(tmp_path), name)


def test_a_key_set_has_a_number_of_keys(tmp_path: Path) -> None:
    one = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{**one, "kid": str(kid)} for kid in range(1001)]}))
    with pytest.raises(KeysError, match="more than 1000 keys"):
        KeySource(Config(oauth_jwks=str(path))).read()
