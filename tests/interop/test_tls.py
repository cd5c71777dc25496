"""TLS: real clients, certificates that are right and wrong, and clients that misbehave."""

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aio_pika
import pika
import pika.exceptions
import pytest
import trustme

from tests.attack.attacker import MIB, forget_peak, peak_bytes, push, reset
from tests.broker_process import BrokerProcess, BrokerStartError
from tests.conformance.wire_client import (
    BASIC_CONSUME_OK,
    CONFIRM_SELECT_OK,
    PROTOCOL_HEADER,
    QUEUE_DECLARE_OK,
    WireClient,
    basic_consume,
    body,
    confirm_select,
    header,
    publish,
    publish_method,
    queue_declare,
)
from tests.interop.event_loop import asynchronous
from tests.interop.external_client import missing, need, run
from tests.interop.test_amqplib import NODEJS
from tests.interop.tls_files import (
    HOST,
    TlsFiles,
    parameters,
    reload,
    tls_broker,
    wire_client,
)
from tests.waiting import wait_until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(str(tmp_path_factory.mktemp("tls") / "files"))


@pytest.fixture(scope="module")
def shared(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    """A broker that asks clients for certificates, and has certificates for further names."""
    for name in ("one.example", "*.many.example"):
        files.named(name)
    directory = str(tmp_path_factory.mktemp("broker") / "store")
    with tls_broker(
        directory, files, client="optional", certificates=files.path("names")
    ) as process:
        process.start()
        yield process
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr, process.log_tail()


@pytest.fixture
def logged(files: TlsFiles, tmp_path: Path) -> Generator[BrokerProcess]:
    """A broker whose log has every client: the shared broker's leaves out clients of a crowd."""
    with tls_broker(str(tmp_path / "store"), files) as process:
        process.start()
        yield process
        assert process.terminate() == 0, process.log_tail()


def is_greeted(broker: BrokerProcess, context: ssl.SSLContext, host: str = HOST) -> bool:
    """Tell whether a client with TLS gets a connection. Raises: OSError, if TLS fails."""
    with (
        socket.create_connection(("127.0.0.1", broker.tls_port), 10) as sock,
        context.wrap_socket(sock, server_hostname=host) as tls,
    ):
        tls.sendall(PROTOCOL_HEADER)
        return bool(tls.recv(100))


def served_name(broker: BrokerProcess, files: TlsFiles, host: str) -> str:
    """Return the name in the certificate that a client is shown who asks for a host."""
    context = files.context()
    context.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", broker.tls_port), 10) as sock,
        context.wrap_socket(sock, server_hostname=host) as tls,
    ):
        certificate = tls.getpeercert() or {}
        return str(certificate["subjectAltName"][0][1])


# Clients.


@pytest.mark.parametrize("size", [0, 100, 64 * MIB])
def test_bodies_go_both_ways(shared: BrokerProcess, files: TlsFiles, name: str, size: int) -> None:
    content = os.urandom(size)
    with pika.BlockingConnection(parameters(shared, files.context())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(name, durable=True)
        channel.basic_publish("", name, content, PERSISTENT)
        _, _, received = channel.basic_get(name, auto_ack=True)
        assert received == content
        channel.queue_delete(name)


@asynchronous
async def test_aio_pika(shared: BrokerProcess, files: TlsFiles, name: str) -> None:
    url = f"amqps://guest:guest@{HOST}:{shared.tls_port}/"
    options = aio_pika.abc.SSLOptions(cafile=files.path("ca.pem"))
    async with await aio_pika.connect(url, ssl_options=options) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, exclusive=True)
        for number in range(300):
            message = aio_pika.Message(b"%d" % number)
            await channel.default_exchange.publish(message, name)
        received = []
        async with queue.iterator() as messages:
            async for one in messages:
                await one.ack()
                received.append(one.body)
                if len(received) == 300:
                    break
    assert received == [b"%d" % number for number in range(300)]


def test_amqplib(shared: BrokerProcess, files: TlsFiles, name: str) -> None:
    """Node.js trusts the CA of a variable."""
    node = need("node", "apt-get install nodejs npm, then make test")
    if not os.path.exists(os.path.join(NODEJS, "node_modules", "amqplib")):
        missing("amqplib is not installed: make test")
    url = f"amqps://guest:guest@{HOST}:{shared.tls_port}/%2F"
    script = os.path.join(NODEJS, "run.mjs")
    run(
        [node, script, url, "confirmChannelConfirmsEveryMessage", name],
        environment={"NODE_EXTRA_CA_CERTS": files.path("ca.pem")},
    )


# Certificates of the server, as the client sees them.


def test_a_client_that_does_not_trust_the_ca_refuses(
    logged: BrokerProcess, files: TlsFiles
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        is_greeted(logged, files.context(trustme.CA()))
    wait_until(lambda: "tlsv1 alert unknown ca" in logged.stderr, "the log says why")


def test_a_certificate_for_another_host_is_refused(shared: BrokerProcess, files: TlsFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        is_greeted(shared, files.context(), "other.example")


def test_the_name_that_a_client_asks_for_chooses_the_certificate(
    shared: BrokerProcess, files: TlsFiles
) -> None:
    assert served_name(shared, files, "one.example") == "one.example"
    assert served_name(shared, files, "ONE.example") == "one.example"
    assert served_name(shared, files, "one.example.") == "one.example"  # with the root's dot
    assert served_name(shared, files, "a.many.example.") == "*.many.example"
    assert served_name(shared, files, "a.many.example") == "*.many.example"
    assert served_name(shared, files, "a.b.many.example") == HOST
    assert served_name(shared, files, "unknown.example") == HOST


def test_old_versions_are_refused(shared: BrokerProcess, files: TlsFiles) -> None:
    context = files.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert is_greeted(shared, context)
    command = ["openssl", "s_client", "-tls1_1", "-connect", f"127.0.0.1:{shared.tls_port}"]
    found = subprocess.run(command, input=b"", capture_output=True, timeout=60, check=False)
    assert found.returncode != 0


def test_version_1_3_can_be_demanded(data_directory: str, files: TlsFiles) -> None:
    context = files.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with tls_broker(data_directory, files, min_version="1.3") as broker:
        broker.start()
        assert is_greeted(broker, files.context())
        with pytest.raises(ssl.SSLError):
            is_greeted(broker, context)


def test_a_certificate_that_expires_is_in_the_log(data_directory: str, tmp_path: object) -> None:
    own = TlsFiles(os.path.join(str(tmp_path), "own"))
    own.issue(days=20)
    with tls_broker(data_directory, own) as broker:
        broker.start()
        wait_until(lambda: 'event="certificate expires soon"' in broker.stderr)
        assert own.path("server.pem") in broker.stderr


def test_an_expired_certificate_does_not_replace_one_that_is_valid(
    data_directory: str, tmp_path: object
) -> None:
    own = TlsFiles(os.path.join(str(tmp_path), "own"))
    with tls_broker(data_directory, own) as broker:
        broker.start()
        own.issue(days=-1)
        reload(broker, 'event="configuration not reloaded"')
        said = broker.stderr.rpartition("configuration not reloaded")[2]
        assert f"{own.path('server.pem')}: the certificate expired at" in said
        assert is_greeted(broker, own.context())
    # One that expires while the broker runs must not keep it from its start, or from a reload.
    with tls_broker(data_directory, own) as broker:
        broker.start()
        wait_until(lambda: 'event="certificate has expired"' in broker.stderr)
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            is_greeted(broker, own.context())
        reload(broker, "certificates read")


# Certificates of clients.


def test_client_certificates_are_verified(data_directory: str, files: TlsFiles) -> None:
    right = files.client_ca.issue_cert("client.example")
    of_another_ca = trustme.CA().issue_cert("client.example")
    expired = files.client_ca.issue_cert(
        "client.example", not_after=datetime.now(UTC) - timedelta(days=1)
    )
    with tls_broker(data_directory, files, client="required") as broker:
        broker.start()
        assert is_greeted(broker, files.context(client=right))
        for wrong in (None, of_another_ca, expired):
            with pytest.raises(OSError, match=r"alert|closed|reset|EOF"):
                is_greeted(broker, files.context(client=wrong))
                raise ConnectionError("closed without an alert")
        wait_until(lambda: broker.stderr.count("TLS handshake failed") == 3)
        assert "peer did not return a certificate" in broker.stderr
        assert "the client's certificate: certificate has expired" in broker.stderr


def test_a_wrong_client_certificate_is_refused_where_none_is_needed(
    shared: BrokerProcess, files: TlsFiles
) -> None:
    assert is_greeted(shared, files.context())
    with pytest.raises(OSError, match=r"alert|closed|reset|EOF"):
        is_greeted(shared, files.context(client=trustme.CA().issue_cert("client.example")))
        raise ConnectionError("closed without an alert")


# Start and reload.


def test_a_broker_does_not_start_with_files_that_do_not_fit(
    data_directory: str, tmp_path: object
) -> None:
    own = TlsFiles(os.path.join(str(tmp_path), "own"))
    other_key = own.path("other.key")
    trustme.CA().issue_cert(HOST).private_key_pem.write_to_path(other_key)
    missing = own.path("missing.pem")
    with open(own.path("text.pem"), "w", encoding="ascii") as text:
        text.write("no certificate")
    for settings, expected in (
        ({"key": other_key}, f"{other_key}: not the key of {own.path('server.pem')}"),
        ({"certificate": missing}, f"{missing}: No such file or directory"),
        ({"certificate": own.path("text.pem")}, f"{own.path('text.pem')}: not a PEM certificate"),
        ({"ca": own.path("text.pem"), "client": "required"}, own.path("text.pem")),
        ({"certificate": ""}, "tls_certificate"),
    ):
        with tls_broker(data_directory, own, **settings) as broker:
            with pytest.raises(BrokerStartError) as raised:
                broker.start()
            assert raised.value.exit_code == 2
            assert expected in broker.stderr


def test_a_reload_keeps_connections_and_wrong_files_change_nothing(
    data_directory: str, tmp_path: object
) -> None:
    own = TlsFiles(os.path.join(str(tmp_path), "own"))
    with tls_broker(data_directory, own, key=own.path("server.pem")) as broker:
        broker.start()
        stop = threading.Event()
        counts = [0]
        publisher = threading.Thread(target=_publish_until, args=(broker, own, stop, counts))
        publisher.start()
        try:
            wait_until(lambda: counts[0] > 20)
            assert served_name(broker, own, HOST) == HOST
            own.issue("new.example")
            reload(broker, 'event="certificates read"')
            assert served_name(broker, own, HOST) == "new.example"

            trustme.CA().issue_cert(HOST).private_key_pem.write_to_path(own.path("server.pem"))
            reload(broker, 'event="configuration not reloaded"')
            assert (
                own.path("server.pem") in broker.stderr.rpartition("configuration not reloaded")[2]
            )
            assert served_name(broker, own, HOST) == "new.example"
            before = counts[0]
            wait_until(lambda: counts[0] > before + 20, "the old connection goes on")
        finally:
            stop.set()
            publisher.join(30)
        assert counts[1:] == [counts[0]]


def _publish_until(
    broker: BrokerProcess, files: TlsFiles, stop: threading.Event, counts: list[int]
) -> None:
    """Publish on one connection; at the end `counts` has how many were confirmed, and are there."""
    with pika.BlockingConnection(parameters(broker, files.context())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("traffic", durable=True)
        while not stop.is_set():
            channel.basic_publish("", "traffic", bytes(1000), PERSISTENT)
            counts[0] += 1
        counts.append(channel.queue_declare("traffic", passive=True).method.message_count)


# Clients that misbehave.


def test_a_client_without_tls_is_told_by_an_alert(logged: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", logged.tls_port), 10) as sock:
        sock.sendall(PROTOCOL_HEADER)
        received = b""
        while read := sock.recv(100):
            received += read
    assert received[:2] == b"\x15\x03", "an alert of TLS"
    wait_until(lambda: "the client speaks AMQP without TLS" in logged.stderr)


def test_a_client_with_tls_on_the_other_port_is_known_in_the_log(
    logged: BrokerProcess, files: TlsFiles
) -> None:
    with socket.create_connection(("127.0.0.1", logged.port), 10) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200))
        assert sock.recv(100) == PROTOCOL_HEADER
        assert sock.recv(100) == b""
    wait_until(lambda: "TLS client on a port without TLS" in logged.stderr)


@pytest.mark.parametrize(
    "first",
    [
        b"\x16\x03\x01\x3f\xff" + bytes(100),
        pytest.param(b"", marks=pytest.mark.long),
        pytest.param(b"\x16", marks=pytest.mark.long),
    ],
)
def test_a_handshake_that_is_not_done_in_time_is_ended(shared: BrokerProcess, first: bytes) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", shared.tls_port), 20) as sock:
        sock.sendall(first)
        port = sock.getsockname()[1]
        wait_until(lambda: _failed(shared, port))
        assert time.monotonic() - began > 4.5
        while sock.recv(100):
            pass


def _failed(broker: BrokerProcess, port: int) -> bool:
    said = rf'event="TLS handshake failed" .*peer=127.0.0.1:{port} reason="it was not done in time"'
    return re.search(said, broker.stderr) is not None


def test_a_handshake_that_never_ends_costs_nothing(shared: BrokerProcess, files: TlsFiles) -> None:
    """Fragments of a ClientHello for ever, and clients that are gone in the middle of it."""
    assert is_greeted(shared, files.context())
    before = forget_peak(shared)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", shared.tls_port), 10) as sock:
            sock.settimeout(1)
            hello = b"\x01\x01\xff\xf0\x03\x03" + bytes(16_378)
            record = b"\x16\x03\x01" + len(hello).to_bytes(2, "big")
            with pytest.raises(OSError):
                for count in range(10_000):
                    sock.sendall(record + (hello if not count else bytes(len(hello))))
        gone = socket.create_connection(("127.0.0.1", shared.tls_port), 10)
        gone.sendall(b"\x16\x03\x01\x00\xff")
        reset(gone)
    assert is_greeted(shared, files.context())
    assert peak_bytes(shared) - before < 16 * MIB


def _has_ended(sock: socket.socket) -> bool:
    """Tell whether the broker has closed its side, behind what it has sent."""
    sock.setblocking(False)
    try:
        while sock.recv(65_536):
            pass
    except BlockingIOError:
        return False
    return True


def test_a_crowd_of_handshakes_keeps_nobody_out(shared: BrokerProcess, files: TlsFiles) -> None:
    """Hundreds that have the server sign, and then say nothing more."""
    before = forget_peak(shared)
    strangers = []
    context = files.context()
    with WireClient.connected(shared.url, channels=1) as old:
        old.declare_queue("old")
        try:
            for _ in range(300):
                outgoing = ssl.MemoryBIO()
                tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST)
                with pytest.raises(ssl.SSLWantReadError):
                    tls.do_handshake()
                stranger = socket.create_connection(("127.0.0.1", shared.tls_port), 10)
                stranger.sendall(outgoing.read())
                strangers.append(stranger)
            assert old.ready("old") == 0
            assert is_greeted(shared, files.context())
            assert not any(map(_has_ended, strangers[-100:])), "it waited for their time to be over"
            assert peak_bytes(shared) - before < 64 * MIB
        finally:
            for stranger in strangers:
                reset(stranger)


def test_random_bytes_after_the_handshake_end_the_connection(
    logged: BrokerProcess, files: TlsFiles
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = files.context().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with socket.create_connection(("127.0.0.1", logged.tls_port), 10) as sock:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(1 << 16))
        tls.write(PROTOCOL_HEADER)
        sock.sendall(outgoing.read() + b"\x17\x03\x03\x00\x40" + os.urandom(64))
        wait_until(lambda: 'event="TLS failed"' in logged.stderr)
        while sock.recv(1000):
            pass


def test_a_flood_of_key_updates_ends_the_connection(logged: BrokerProcess) -> None:
    openssl = shutil.which("openssl")
    assert openssl is not None
    command = [openssl, "s_client", "-tls1_3", "-connect", f"127.0.0.1:{logged.tls_port}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"k\n")
        process.stdin.flush()
        sent = 0
        for line in process.stderr:  # until openssl ends, as the connection does
            if line.startswith(b"KEYUPDATE") and sent < 5000:
                sent += 1
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(b"k\n")
                    process.stdin.flush()
        # What could not be written is left in the buffer.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    # A broker that is slow to read them may have been sent all 5000 before it ends the connection.
    assert sent > 1000
    wait_until(lambda: "too many records without content" in logged.stderr)


def test_what_came_before_a_half_close_counts(
    shared: BrokerProcess, files: TlsFiles, name: str
) -> None:
    """close_notify, while the socket stays open: the publish is taken, and the end noticed."""
    with wire_client(shared, files.context()) as client:
        client.send(queue_declare(1, name, bits=0b010))
        client.expect(QUEUE_DECLARE_OK, 1)
        client.send(publish(1, name, b"last words"))
        tls = client.socket
        assert isinstance(tls, ssl.SSLSocket)
        with tls.unwrap() as plain:  # sends close_notify, and waits for the broker's
            assert plain.recv(1) == b""
    with WireClient.connected(shared.url, channels=1) as other:
        assert other.get(name)[1] == b"last words"


def test_a_client_that_reads_nothing_is_bounded(
    shared: BrokerProcess, files: TlsFiles, name: str
) -> None:
    """The client does not read its deliveries; other clients are served, and everything arrives at
    last.
    """
    count, size = 200, 500_000
    content = os.urandom(size)
    with wire_client(shared, files.context()) as client:
        client.send(queue_declare(1, name, bits=0b100))
        client.expect(QUEUE_DECLARE_OK, 1)
        client.send(confirm_select(1))
        client.expect(CONFIRM_SELECT_OK, 1)
        frames = b"".join(body(1, content[at : at + 100_000]) for at in range(0, size, 100_000))
        before = forget_peak(shared)
        for _ in range(count):
            client.send(publish_method(1, name) + header(1, size) + frames)
        client.send(basic_consume(1, name, "c"))
        with WireClient.connected(shared.url, channels=1) as other:
            other.declare_queue(f"{name}.other")
            for _ in range(20):
                assert other.ready(f"{name}.other") == 0
        assert peak_bytes(shared) - before < 160 * MIB
        received = 0
        while received < count * size:
            frame = client.next_frame()
            if frame.frame_type == 3:
                at = received % size
                assert frame.payload == content[at : at + len(frame.payload)]
                received += len(frame.payload)


def test_requests_whose_answers_are_not_read_wait(
    shared: BrokerProcess, files: TlsFiles, name: str
) -> None:
    before = forget_peak(shared)
    with wire_client(shared, files.context()) as client:
        request = publish_method(1, "nowhere", mandatory=True) + header(1, 60_000)
        sent = push(client, [request + body(1, bytes(60_000))] * 5000)
        assert sent < 96 * MIB, "it went on reading"
        assert peak_bytes(shared) - before < 96 * MIB


def test_many_small_messages_arrive_in_order(
    shared: BrokerProcess, files: TlsFiles, name: str
) -> None:
    count = 20_000
    with wire_client(shared, files.context()) as client:
        client.send(queue_declare(1, name, bits=0b100))
        client.expect(QUEUE_DECLARE_OK, 1)
        client.send(b"".join(publish(1, name, b"%d" % number) for number in range(count)))
        assert client.get(name)[1] == b"0"
        client.send(basic_consume(1, name, "c"))
        client.expect(BASIC_CONSUME_OK, 1)
        expected = 1
        while expected < count:
            frame = client.next_frame()
            if frame.frame_type == 3:
                assert frame.payload == b"%d" % expected
                expected += 1
