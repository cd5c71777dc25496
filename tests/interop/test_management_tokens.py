"""Tokens (JWT) of an issuer instead of passwords, on the management API."""

from collections.abc import Generator

import pytest
import trustme

from tests.broker_process import BrokerProcess
from tests.management_client import ManagementClient, managed, management_url
from tests.token_issuer import Issuer
from tests.waiting import wait_until

ANNA = {"name": "anna", "tags": ["management"], "is_internal_user": False}
OWN = "broker.configure:%2F/own* broker.write:%2F/* broker.read:%2F/own*"


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def issuer(ca: trustme.CA) -> Generator[Issuer]:
    found = Issuer(ca)
    yield found
    found.close()


@pytest.fixture(scope="module")
def broker(
    ca: trustme.CA, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[BrokerProcess]:
    """A broker that asks the issuer for its keys."""
    directory = tmp_path_factory.mktemp("tokens")
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    broker = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    broker.environment |= {
        "AMQPSTORE_OAUTH_RESOURCE_SERVER_ID": "broker",
        "AMQPSTORE_OAUTH_JWKS": issuer.url,
        "AMQPSTORE_OAUTH_JWKS_CA": str(directory / "ca.pem"),
        "AMQPSTORE_OAUTH_LEEWAY_S": "0",
        "AMQPSTORE_LOG_LEVEL": "debug",
    }
    with broker:
        broker.start()
        yield broker
        assert broker.terminate() == 0, broker.log_tail()
        assert "Traceback" not in broker.stderr, broker.log_tail()
        assert "eyJ" not in broker.stderr, "a token is in the log"


@pytest.fixture
def guest(broker: BrokerProcess) -> Generator[ManagementClient]:
    with ManagementClient(management_url(broker)) as client:
        yield client


def test_scopes_are_tags_and_permissions(guest: ManagementClient, issuer: Issuer) -> None:
    guest.put("/vhosts/elsewhere")
    with guest.with_token(issuer.token(scope=f"{OWN} broker.tag:management")) as anna:
        assert anna.get("/whoami") == ANNA
        anna.put("/queues/%2F/own.1")
        anna.put("/queues/%2F/other", status=401)
        message = {"routing_key": "own.1", "payload": "x", "payload_encoding": "string"}
        anna.post("/exchanges/%2F/amq.default/publish", {**message, "properties": {}})
        (got,) = anna.post("/queues/%2F/own.1/get", {"ackmode": "ack_requeue_false"})
        assert got["payload"] == "x"
        assert [row["name"] for row in anna.get("/vhosts")] == ["/"]
        for path in ("/users", "/nodes", "/queues/elsewhere", "/policies"):
            anna.expect(401, "GET", path)
        anna.put("/vhosts/new", status=401)
        anna.delete("/queues/%2F/own.1")


def test_a_tag_needs_no_permission(guest: ManagementClient, issuer: Issuer) -> None:
    with guest.with_token(issuer.token(scope="broker.tag:monitoring")) as client:
        assert client.get("/nodes")
        assert client.get("/queues/%2F") == []
        client.put("/queues/%2F/own", status=401)
        client.expect(401, "GET", "/users")
    with guest.with_token(issuer.token(scope="broker.tag:administrator")) as client:
        assert client.get("/users")


def test_permissions_without_a_tag_are_not_enough(guest: ManagementClient, issuer: Issuer) -> None:
    for scope in (OWN, f"{OWN} other.tag:administrator", f"{OWN} tag:administrator"):
        with guest.with_token(issuer.token(scope=scope)) as client:
            assert client.expect(401, "GET", "/whoami")["reason"] == "Not management user"


def test_a_wrong_token_is_refused_everywhere(
    broker: BrokerProcess, guest: ManagementClient, issuer: Issuer, ca: trustme.CA
) -> None:
    scope = "broker.tag:administrator"
    right = issuer.token(scope=scope)
    stranger = Issuer(ca)
    try:
        wrong = [
            issuer.token(scope=scope, lasts_s=-1),
            issuer.token(scope=scope, aud="another"),
            stranger.token(scope=scope),
            right[:-4] + ("AAAA" if right[-4:] != "AAAA" else "BBBB"),
            right.rpartition(".")[0] + ".",
            "eyJ.eyJ.x",
            "x",
            "",
        ]
    finally:
        stranger.close()
    before = broker.stderr.count('"login refused"')
    for token in wrong:
        with guest.with_token(token) as client:
            for path in ("/whoami", "/users", "/definitions"):
                answer = client.request("GET", path)
                assert answer.status_code == 401, token
                assert answer.json() == {"error": "not_authorized", "reason": "Not_Authorized"}
                assert "www-authenticate" in answer.headers
    wait_until(lambda: broker.stderr.count('"login refused"') > before)


def test_a_token_is_also_the_password_of_basic_authentication(
    guest: ManagementClient, issuer: Issuer
) -> None:
    token = issuer.token(scope="broker.tag:management")
    for user in ("ignored", "guest", ""):
        with guest.as_user(user, token) as client:
            assert client.get("/whoami") == ANNA
    with guest.as_user("guest", issuer.token(aud="another")) as client:
        client.expect(401, "GET", "/whoami")


def test_a_token_ends_while_its_connection_stays(guest: ManagementClient, issuer: Issuer) -> None:
    token = issuer.token(scope="broker.tag:management", lasts_s=5)
    with guest.with_token(token) as client:
        assert client.get("/whoami")["name"] == "anna"
        wait_until(lambda: client.request("GET", "/whoami").status_code == 401, "its end")
