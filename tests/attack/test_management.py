"""Hostile clients of the management API: AMQP clients notice nothing, and others are answered."""

import base64
import contextlib
import http.client
import re
import socket
import ssl
import threading
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest
import requests

from tests.attack.attacker import MIB, descriptor_count, forget_peak, peak_bytes
from tests.broker_process import BrokerProcess
from tests.interop.tls_files import HOST as TLS_HOST
from tests.interop.tls_files import TlsFiles
from tests.management_client import ManagementClient, managed, management_url
from tests.waiting import wait_until

MAX_CONNECTIONS = 60
LOGIN_VALUE = "Basic " + base64.b64encode(b"guest:guest").decode()
LOGIN = f"Authorization: {LOGIN_VALUE}\r\n".encode()
HOST = b"Host: x\r\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(str(tmp_path_factory.mktemp("tls") / "files"))


@pytest.fixture(scope="module")
def broker(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("management")
    process = managed(BrokerProcess(str(directory / "data"), str(directory / "log")))
    process.environment |= files.environment()
    process.environment["AMQPSTORE_MANAGEMENT_TLS_LISTEN"] = "127.0.0.1:0"
    process.environment["AMQPSTORE_MANAGEMENT_MAX_CONNECTIONS"] = str(MAX_CONNECTIONS)
    process.environment["AMQPSTORE_MANAGEMENT_MAX_BODY_BYTES"] = "100000"
    with process:
        process.start()
        wait_until(lambda: process.stderr.count('event="management API"') == 2)
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture(autouse=True)
def served(broker: BrokerProcess) -> Generator[None]:
    """During each attack a client of AMQP that was there before is served, and so is a new one.

    Afterwards all of its connections are gone.
    """
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        before = descriptor_count(broker)
        yield
        channel.basic_publish("amq.topic", "x", b"still there")
    wait_until(lambda: descriptor_count(broker) <= before, "the connections to be closed")
    wait_until(lambda: is_served(broker), "a place for one more")


def url_of(broker: BrokerProcess, scheme: str = "http") -> str:
    """The URL of the API, without TLS or with it."""
    (found,) = re.findall(rf'event="management API" url=({scheme}://\S+)', broker.stderr)
    return str(found)


def is_served(broker: BrokerProcess) -> bool:
    """Whether the API answers."""
    with ManagementClient(url_of(broker)) as api:
        with contextlib.suppress(requests.ConnectionError):
            return bool(api.get("/whoami")["name"] == "guest")
        return False


def serves_all(broker: BrokerProcess) -> None:
    """Be served by AMQP and by HTTP."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "x", b"new")


def connect(broker: BrokerProcess) -> socket.socket:
    url = urlsplit(url_of(broker))
    return socket.create_connection((url.hostname, url.port), timeout=60)


def connect_with_tls(broker: BrokerProcess, files: TlsFiles) -> socket.socket:
    url = urlsplit(url_of(broker, "https"))
    plain = socket.create_connection((url.hostname, url.port), timeout=60)
    return files.context().wrap_socket(plain, server_hostname=TLS_HOST)


def answered(client: socket.socket) -> bytes:
    """Return what the broker answers before it closes the connection."""
    found = bytearray()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := client.recv(1 << 16):
            found += part
    return bytes(found)


def test_an_idle_connection_that_its_client_has_closed_has_left(tmp_path: Path) -> None:
    """Scripts make one for each request: it does not wait for the end of the time that it might
    have stayed idle, which is an hour here.
    """
    server = "amqpstore_server.management.http_server"
    (tmp_path / "sitecustomize.py").write_text(f"import {server}\n{server}._IDLE_S = 3600.0\n")
    with managed(BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log"))) as broker:
        broker.environment["PYTHONPATH"] = str(tmp_path)
        broker.environment["AMQPSTORE_MANAGEMENT_MAX_CONNECTIONS"] = "5"
        broker.start()
        url = urlsplit(management_url(broker))
        before = descriptor_count(broker)
        for _ in range(5):
            client = http.client.HTTPConnection(url.netloc, timeout=60)
            for _ in range(2):  # before the second request it was idle
                client.request("GET", "/api/whoami", headers={"Authorization": LOGIN_VALUE})
                answer = client.getresponse()
                assert answer.status == 200
                answer.read()
            client.close()
        wait_until(lambda: descriptor_count(broker) <= before, "the connections to be closed")


def test_a_connection_that_is_closed_during_an_answer_has_left(broker: BrokerProcess) -> None:
    asked = b"GET /api/whoami HTTP/1.1\r\n" + HOST + LOGIN + b"\r\n"
    answers = 0
    for _ in range(2 * MAX_CONNECTIONS):
        with connect(broker) as client, contextlib.suppress(ConnectionError):
            client.sendall(asked)
            answers += client.recv(13) == b"HTTP/1.1 200 "
    assert answers == 2 * MAX_CONNECTIONS


def test_requests_that_never_end_keep_nobody_out(broker: BrokerProcess) -> None:
    """Slow loris: a part of a header from each of many connections, again and again."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(broker)) for _ in range(2 * MAX_CONNECTIONS)]
        for _ in range(3):
            for client in clients:
                with contextlib.suppress(ConnectionError):
                    client.sendall(b"GET /api/overview HTTP/1.1\r\n" + LOGIN + HOST + b"X-a: ")
            serves_all(broker)


def test_nobody_waits_for_the_time_of_requests_that_never_end(broker: BrokerProcess) -> None:
    """The oldest connection without a login makes room; a client that has logged in stays, by a
    password or a session of the pages.
    """
    with contextlib.ExitStack() as stack:
        mine = http.client.HTTPConnection(urlsplit(url_of(broker)).netloc, timeout=60)
        stack.callback(mine.close)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        mine.request("POST", "/login", "user=guest&password=guest", form)
        answer = mine.getresponse()
        answer.read()
        cookie = {"Cookie": str(answer.headers["set-cookie"]).split(";")[0]}
        for _ in range(3):
            for _ in range(MAX_CONNECTIONS):
                client = stack.enter_context(connect(broker))
                with contextlib.suppress(ConnectionError):
                    client.sendall(b"GET /api/overview HTTP/1.1\r\n" + HOST + b"X-a: ")
            assert is_served(broker)
            mine.request("GET", "/queues", headers=cookie)
            answer = mine.getresponse()
            answer.read()
            assert answer.status == 200


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_WINDOW = b"\0\0\6\4\0\0\0\0\0" + b"\0\4\0\0\0\0"
"""HTTP/2: the settings of a client that will take nothing of an answer."""


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
def test_http_2_is_not_spoken(broker: BrokerProcess, files: TlsFiles, has_tls: bool) -> None:
    """HTTP/2 is refused before a login too: its streams would cost memory without a bound."""
    with connect_with_tls(broker, files) if has_tls else connect(broker) as client:
        client.sendall(PREFACE + NO_WINDOW)
        assert answered(client).startswith(b"HTTP/1.1 505 HTTP Version Not Supported\r\n")


def test_who_asks_for_an_upgrade_to_http_2_is_answered_without(broker: BrokerProcess) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    with connect(broker) as client:
        client.sendall(b"GET /api/whoami HTTP/1.1\r\n" + HOST + LOGIN + upgrade + b"\r\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.long
def test_a_request_that_never_ends_is_closed_after_its_time(broker: BrokerProcess) -> None:
    with connect(broker) as header, connect(broker) as body:
        header.sendall(b"GET /api/overview HTTP/1.1\r\n" + HOST + b"X-a: ")
        body.sendall(
            b"PUT /api/queues/%2F/q HTTP/1.1\r\n" + HOST + LOGIN + b"Content-Length: 9\r\n\r\n{"
        )
        assert answered(header) == b""
        assert answered(body).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


@pytest.mark.parametrize("login", [LOGIN, b""])
@pytest.mark.parametrize("length", [b"Transfer-Encoding: chunked", b"Content-Length: 900000000"])
@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
def test_a_body_without_an_end_is_answered_and_closed(
    broker: BrokerProcess, files: TlsFiles, has_tls: bool, login: bytes, length: bytes
) -> None:
    forget_peak(broker)
    head = b"PUT /api/queues/%2F/q HTTP/1.1\r\n" + HOST + login + length + b"\r\n\r\n"
    part = bytes(50_000)
    if b"chunked" in length:
        part = b"%x\r\n%s\r\n" % (len(part), part)
    before = peak_bytes(broker)
    with connect_with_tls(broker, files) if has_tls else connect(broker) as client:
        with contextlib.suppress(OSError):
            client.sendall(head)
            for _ in range(100):
                client.sendall(part)
        found = answered(client)
    if found:  # It may be lost, when the connection is closed while we still send.
        assert found.startswith(b"HTTP/1.1 400 " if login else b"HTTP/1.1 401 ")
        assert b"connection: close" in found.lower()
    assert peak_bytes(broker) - before < 5 * MIB
    serves_all(broker)


def test_a_header_has_a_limit(broker: BrokerProcess) -> None:
    before = forget_peak(broker)
    with connect(broker) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET /api/whoami HTTP/1.1\r\n" + HOST + b"X-a: ")
            for _ in range(300):
                client.sendall(b"a" * 10_000)
        assert answered(client)[:13] in (b"", b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")
    assert peak_bytes(broker) - before < 3 * MIB


def test_requests_in_a_row_are_answered_in_their_order(broker: BrokerProcess) -> None:
    """A login is checked for each: what one may do is not what the one before may."""
    with connect(broker) as client:
        requests = bytearray()
        for number in range(40):
            login = LOGIN if number % 2 else b""
            requests += b"GET /api/queues/%%2F/q%d HTTP/1.1\r\n" % number + HOST + login + b"\r\n"
        client.sendall(requests + b"GET /api/whoami HTTP/1.1\r\nConnection: close\r\n" + HOST)
        client.sendall(LOGIN + b"\r\n")
        found = answered(client)
    statuses = [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"401", b"404"] * 20 + [b"200"]
    numbers = [int(part.split(b"'")[0]) for part in found.split(b"no queue 'q")[1:]]
    assert numbers == list(range(1, 40, 2))


def test_a_client_that_reads_no_answers_costs_little(broker: BrokerProcess) -> None:
    before = forget_peak(broker)
    asked = b"GET /api/openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(broker)) for _ in range(20)]
        for client in clients:
            client.settimeout(0.2)
            with contextlib.suppress(TimeoutError, ConnectionError):
                client.sendall(asked * 200)
        serves_all(broker)
    assert peak_bytes(broker) - before < 40 * MIB


def test_gets_of_large_messages_take_turns(broker: BrokerProcess) -> None:
    """Each get holds several copies of its message's body until the answer is sent."""
    size, count = 8 * MIB, 12
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("large")
        channel.confirm_delivery()
        for _ in range(count):
            channel.basic_publish("", "large", b"x" * size)
        before = forget_peak(broker)
        wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        sizes: list[int] = []

        def get() -> None:
            with ManagementClient(url_of(broker)) as api:
                answer = api.request("POST", "/queues/%2F/large/get", json=wanted)
                sizes.append(len(answer.json()[0]["payload"]) if answer.json() else 0)

        threads = [threading.Thread(target=get) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        channel.queue_delete("large")
    assert sizes == [size] * count
    grown = peak_bytes(broker) - before
    assert grown < 8 * size, f"{grown / size:.1f} times the size of a message"


def test_more_connections_than_may_be_are_closed(broker: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack:
        asked = b"GET /api/whoami HTTP/1.1\r\n" + HOST + LOGIN + b"\r\n"
        clients = [stack.enter_context(connect(broker)) for _ in range(2 * MAX_CONNECTIONS)]
        count = 0
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.sendall(asked)
                count += client.recv(13) == b"HTTP/1.1 200 "
        assert 0 < count <= MAX_CONNECTIONS
        serves_all(broker)
