"""Logins by certificate (EXTERNAL), and where passwords are accepted."""

import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import amqp
import pika
import pika.exceptions
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import (
    CONNECTION_START,
    CONNECTION_TUNE,
    PROTOCOL_HEADER,
    WireClient,
    start_ok,
)
from tests.interop.tls_files import (
    HOST,
    TlsFiles,
    parameters,
    reload,
    tls_broker,
    wire_client,
)
from tests.waiting import wait_until

DEFINITIONS = """{"users": [{"name": "%s", "password_hash": "", "tags": []}],
 "vhosts": [{"name": "/"}],
 "permissions": [{"user": "%s", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}]}"""


@pytest.fixture
def files(tmp_path: object) -> TlsFiles:
    return TlsFiles(f"{tmp_path}/files")


def client_certificate(files: TlsFiles, *common_names: str) -> trustme.LeafCert:
    """A certificate of the clients' CA, with common names."""
    if len(common_names) == 1:
        return files.client_ca.issue_cert("anna@example.org", common_name=common_names[0])
    return signed(files, *common_names)


def signed(
    files: TlsFiles,
    *common_names: str,
    signer: ec.EllipticCurvePrivateKey | None = None,
) -> trustme.LeafCert:
    """One that names the clients' CA as its issuer, and is signed by it or by another key."""
    key = ec.generate_private_key(ec.SECP256R1())
    ca_key = serialization.load_pem_private_key(
        files.client_ca.private_key_pem.bytes(), password=None
    )
    ca = x509.load_pem_x509_certificate(files.client_ca.cert_pem.bytes())
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    names = [x509.NameAttribute(x509.NameOID.COMMON_NAME, one) for one in common_names]
    now = datetime.now(UTC)
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(signer or ca_key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return trustme.LeafCert(pem, leaf.public_bytes(serialization.Encoding.PEM), [])


def mechanisms(client: WireClient) -> list[str]:
    """Return the mechanisms that the server offers."""
    client.send(PROTOCOL_HEADER)
    arguments = client.expect(CONNECTION_START).arguments
    at = 2 + 4 + int.from_bytes(arguments[2:6], "big")
    size = int.from_bytes(arguments[at : at + 4], "big")
    return arguments[at + 4 : at + 4 + size].decode().split()


def offered(broker: BrokerProcess, files: TlsFiles, client: trustme.LeafCert | None) -> list[str]:
    with wire_client(broker, files.context(client=client), greeted=False) as one:
        return mechanisms(one)


def external_broker(
    data_directory: str, files: TlsFiles, user: str, **settings: str
) -> BrokerProcess:
    """A broker whose one user has no password."""
    path = files.path("definitions.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(DEFINITIONS % (user, user))
    broker = tls_broker(data_directory, files, **{"client": "optional", **settings})
    broker.environment["AMQPSTORE_DEFINITIONS"] = path
    return broker


@pytest.mark.parametrize(
    ("login_from", "user"),
    [
        ("common_name", "anna"),
        ("san_email", "anna@example.org"),
        ("distinguished_name", "CN=anna,OU=Testing cert,O=trustme v1.2.1"),
    ],
)
def test_a_certificate_says_who_the_user_is(
    data_directory: str, files: TlsFiles, login_from: str, user: str
) -> None:
    certificate = client_certificate(files, "anna")
    if login_from == "distinguished_name":
        leaf = x509.load_pem_x509_certificate(certificate.cert_chain_pems[0].bytes())
        user = leaf.subject.rfc4514_string()
        assert user.startswith("CN=anna,")
    with external_broker(data_directory, files, user, login_from=login_from) as broker:
        broker.start()
        external = pika.credentials.ExternalCredentials()
        options = parameters(broker, files.context(client=certificate), credentials=external)
        with pika.BlockingConnection(options) as connection:
            channel = connection.channel()
            channel.queue_declare("q", exclusive=True)
            right = pika.BasicProperties(user_id=user)
            channel.basic_publish("", "q", b"mine", right)
            _, properties, _ = channel.basic_get("q", auto_ack=True)
            assert properties is not None
            assert properties.user_id == user


def test_py_amqp_logs_in_with_its_certificate_and_sends_large_bodies(
    data_directory: str, files: TlsFiles
) -> None:
    """Connect as Celery does: with paths, from which py-amqp makes a context itself."""
    anna = client_certificate(files, "anna")
    anna.private_key_pem.write_to_path(files.path("anna.key"))
    anna.cert_chain_pems[0].write_to_path(files.path("anna.pem"))
    paths = {"keyfile": "anna.key", "certfile": "anna.pem", "ca_certs": "ca.pem"}
    tls: dict[str, Any] = {name: files.path(path) for name, path in paths.items()}
    body = b"0123456789" * 100_000
    with external_broker(data_directory, files, "anna", login_from="common_name") as broker:
        broker.start()
        with amqp.Connection(
            f"127.0.0.1:{broker.tls_port}",
            ssl={**tls, "server_hostname": HOST, "cert_reqs": ssl.CERT_REQUIRED},
            login_method="EXTERNAL",
        ) as connection:
            channel: Any = connection.channel()
            channel.queue_declare("q", exclusive=True)
            message = amqp.Message(body, content_encoding="binary")
            channel.basic_publish_confirm(message, routing_key="q")
            assert channel.basic_get("q", no_ack=True).body == body
        wait_until(lambda: "user=anna mechanism=EXTERNAL" in broker.stderr)


def test_external_is_offered_only_where_it_can_work(data_directory: str, files: TlsFiles) -> None:
    with external_broker(data_directory, files, "anna", login_from="common_name") as broker:
        broker.start()
        anna = client_certificate(files, "anna")
        assert offered(broker, files, anna) == ["PLAIN", "AMQPLAIN", "EXTERNAL"]
        assert offered(broker, files, None) == ["PLAIN", "AMQPLAIN"]
        # Clients prefer it, and would not try the password that they have.
        assert offered(broker, files, client_certificate(files, "nobody")) == ["PLAIN", "AMQPLAIN"]
        assert offered(broker, files, client_certificate(files, "anna", "berta")) == [
            "PLAIN",
            "AMQPLAIN",
        ]
        with WireClient(broker.url) as plain:
            assert mechanisms(plain) == ["PLAIN", "AMQPLAIN"]
        # A client that chooses EXTERNAL all the same is not let in.
        with WireClient.greeted(broker.url) as plain:
            plain.send(start_ok("EXTERNAL", b""))
            plain.expect_closed()


def test_a_certificate_of_nobody_is_refused(data_directory: str, files: TlsFiles) -> None:
    with external_broker(data_directory, files, "anna", login_from="common_name") as broker:
        broker.start()
        for name, response in (("berta", b""), ("berta", b"anna"), ("berta", b"\0anna\0")):
            context = files.context(client=client_certificate(files, name))
            with wire_client(broker, context, greeted=False) as client:
                mechanisms(client)
                client.send(start_ok("EXTERNAL", response))
                client.expect_closed()
        wait_until(lambda: broker.stderr.count('event="login refused"') == 3)
        # The user has no password, and an empty one does not count either.
        with WireClient.greeted(broker.url) as client:
            client.send(start_ok(response=b"\0anna\0"))
            client.expect_closed()


def test_an_issuer_is_known_by_its_key(data_directory: str, files: TlsFiles) -> None:
    """CVE-2026-67231 of RabbitMQ: issuer and serial number are those of a right certificate, the
    signature is not."""
    with external_broker(data_directory, files, "anna", login_from="common_name") as broker:
        broker.start()
        right = signed(files, "anna")
        assert "EXTERNAL" in offered(broker, files, right)
        forged = signed(files, "anna", signer=ec.generate_private_key(ec.SECP256R1()))
        with pytest.raises(OSError, match=r"alert|closed|reset|EOF"):
            offered(broker, files, forged)
        wait_until(lambda: "TLS handshake failed" in broker.stderr)
        assert "certificate signature failure" in broker.stderr


def test_names_in_certificates_cannot_forge_the_log(data_directory: str, files: TlsFiles) -> None:
    """CVE-2026-66077 of RabbitMQ: a name that is markup there; here line ends and escapes."""
    name = "x\nlevel=info event=login user=admin \x1b[2J<script>"
    with external_broker(data_directory, files, "anna", login_from="common_name") as broker:
        broker.start()
        context = files.context(client=client_certificate(files, name))
        with wire_client(broker, context, greeted=False) as client:
            mechanisms(client)
            client.send(start_ok("EXTERNAL", b""))
            client.expect_closed()
        wait_until(lambda: "login refused" in broker.stderr)
        assert "\x1b" not in broker.stderr
        assert "\nlevel=info event=login" not in broker.stderr


def test_mechanisms_are_configured_and_reloaded(
    data_directory: str, files: TlsFiles, tmp_path: object
) -> None:
    path = f"{tmp_path}/amqpstore.toml"
    with open(path, "w", encoding="utf-8") as file:
        file.write('mechanisms = ["AMQPLAIN"]\n')
    with BrokerProcess(data_directory, f"{data_directory}.log", ["--config", path]) as broker:
        broker.start()
        with WireClient(broker.url) as client:
            assert mechanisms(client) == ["AMQPLAIN"]
            client.send(start_ok("PLAIN"))
            client.expect_closed()
        with open(path, "w", encoding="utf-8") as file:
            file.write('mechanisms = ["PLAIN"]\n')
        reload(broker, 'event="configuration reloaded"')
        with WireClient(broker.url) as client:
            assert mechanisms(client) == ["PLAIN"]
            client.send(start_ok("PLAIN"))
            client.expect(CONNECTION_TUNE)


def test_a_revoked_certificate_is_refused(data_directory: str, files: TlsFiles) -> None:
    anna, berta = client_certificate(files, "anna"), client_certificate(files, "berta")
    files.revoke(berta)
    settings = {"client": "required", "crl": files.path("crl.pem")}
    with tls_broker(data_directory, files, **settings) as broker:
        broker.start()
        with wire_client(broker, files.context(client=anna)) as first:
            with pytest.raises((OSError, EOFError)):
                wire_client(broker, files.context(client=berta))
            wait_until(lambda: "client's certificate: certificate revoked" in broker.stderr)
            files.revoke(anna)
            reload(broker, 'event="certificates read"')
            with wire_client(broker, files.context(client=berta)):
                pass
            with pytest.raises((OSError, EOFError)):
                wire_client(broker, files.context(client=anna))
            first.open_channel(2)  # an open connection stays
            # Without a valid list, a certificate cannot be told from a revoked one.
            files.revoke(days=-0.5)
            reload(broker, 'event="certificates read"')
            expired = 'event="list of revoked certificates has expired"'
            wait_until(lambda: expired in broker.stderr)
            with pytest.raises((OSError, EOFError)):
                wire_client(broker, files.context(client=berta))
            wait_until(lambda: "CRL has expired" in broker.stderr)
            files.revoke(ca=trustme.CA())
            reload(broker, 'event="certificates read"')
            with pytest.raises((OSError, EOFError)):
                wire_client(broker, files.context(client=berta))
            wait_until(lambda: "unable to get certificate CRL" in broker.stderr)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "nothing in PEM"),
        ("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "not a PEM file of CRLs"),
        ("a certificate", "it has CERTIFICATE"),
    ],
)
def test_a_file_that_is_no_list_of_revoked_certificates_changes_nothing(
    data_directory: str, files: TlsFiles, content: str, said: str
) -> None:
    """Least of all does a certificate in it become one of a CA."""
    anna = client_certificate(files, "anna")
    files.revoke()
    path = files.path("crl.pem")
    with tls_broker(data_directory, files, client="required", crl=path) as broker:
        broker.start()
        if content == "a certificate":
            files.client_ca.cert_pem.write_to_path(path)
        else:
            with open(path, "w", encoding="ascii") as file:
                file.write(content)
        reload(broker, 'event="configuration not reloaded"')
        assert said in broker.stderr
        with wire_client(broker, files.context(client=anna)):
            pass
