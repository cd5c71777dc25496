"""Certificates of a test, as files, and the broker that uses them."""

import os
import signal
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import WireClient
from tests.waiting import wait_until

HOST = "localhost"


class TlsFiles:
    """A CA of the server and one of the clients, in a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        os.makedirs(directory)
        self.ca = trustme.CA()
        self.client_ca = trustme.CA()
        self.client_ca.cert_pem.write_to_path(self.path("clients.pem"))
        self.ca.cert_pem.write_to_path(self.path("ca.pem"))
        self.issue()

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def issue(self, *names: str, days: int = 90) -> None:
        """Write the server's certificate, for `localhost` or for other names."""
        leaf = self.ca.issue_cert(
            *(names or (HOST,)), not_after=datetime.now(UTC) + timedelta(days=days)
        )
        leaf.private_key_and_cert_chain_pem.write_to_path(self.path("server.pem"))

    def revoke(
        self, *revoked: trustme.LeafCert, ca: trustme.CA | None = None, days: float = 1
    ) -> None:
        """Write the list of revoked certificates of the clients' CA, valid from yesterday on."""
        ca = ca or self.client_ca
        key = serialization.load_pem_private_key(ca.private_key_pem.bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(x509.load_pem_x509_certificate(ca.cert_pem.bytes()).subject)
            .last_update(now - timedelta(days=1))
            .next_update(now + timedelta(days=days))
        )
        for certificate in revoked:
            leaf = x509.load_pem_x509_certificate(certificate.cert_chain_pems[0].bytes())
            entry = x509.RevokedCertificateBuilder().serial_number(leaf.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now).build())
        with open(self.path("crl.pem"), "wb") as file:
            crl = builder.sign(key, hashes.SHA256())
            file.write(crl.public_bytes(serialization.Encoding.PEM))

    def named(self, name: str) -> None:
        """Write a certificate for a name, to be asked for."""
        folder = self.path("names")
        os.makedirs(folder, exist_ok=True)
        leaf = self.ca.issue_cert(name)
        stem = os.path.join(folder, name.replace("*", "any"))
        leaf.private_key_pem.write_to_path(f"{stem}.key")
        leaf.cert_chain_pems[0].write_to_path(f"{stem}.crt")

    def environment(self, **settings: str) -> dict[str, str]:
        """The configuration of a broker, with these keys besides."""
        keys = {"certificate": self.path("server.pem"), "ca": self.path("clients.pem"), **settings}
        return {f"AMQPSTORE_TLS_{name.upper()}": value for name, value in keys.items()}

    def context(
        self, ca: trustme.CA | None = None, client: trustme.LeafCert | None = None
    ) -> ssl.SSLContext:
        """Return a client's context: it trusts a CA, and may have a certificate."""
        context = ssl.create_default_context()
        (ca or self.ca).configure_trust(context)
        if client is not None:
            client.configure_cert(context)
        return context


def tls_broker(data_directory: str, files: TlsFiles, **settings: str) -> BrokerProcess:
    """A broker that listens without TLS and with it."""
    return BrokerProcess(
        data_directory,
        f"{data_directory}.log",
        arguments=["--tls-listen", "127.0.0.1:0"],
        environment=files.environment(**settings),
    )


def parameters(
    broker: BrokerProcess, context: ssl.SSLContext, host: str = HOST, **others: Any
) -> pika.ConnectionParameters:
    """Return the parameters with which pika connects over TLS."""
    return pika.ConnectionParameters(
        "127.0.0.1",
        broker.tls_port,
        ssl_options=pika.SSLOptions(context, host),
        connection_attempts=1,
        **others,
    )


def wire_client(
    broker: BrokerProcess, context: ssl.SSLContext, channels: int = 1, *, greeted: bool = True
) -> WireClient:
    """A raw client behind TLS, connected, or before it has said anything."""

    class TlsWireClient(WireClient):
        def __init__(self, url: str) -> None:
            super().__init__(url)
            self._socket = context.wrap_socket(self._socket, server_hostname=HOST)

    url = f"amqp://127.0.0.1:{broker.tls_port}/%2F"
    return TlsWireClient.connected(url, channels) if greeted else TlsWireClient(url)


def reload(broker: BrokerProcess, event: str) -> None:
    """Send SIGHUP, and wait for what the log then says."""
    before = broker.stderr.count(event)
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: broker.stderr.count(event) > before, event)
