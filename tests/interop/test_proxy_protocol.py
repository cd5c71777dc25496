"""A broker behind a proxy that names its clients: they are who the header says."""

import socket
from collections.abc import Generator

import pytest

from tests.attack.attacker import is_closed
from tests.broker_process import BrokerProcess
from tests.conformance.wire_client import PROTOCOL_HEADER, WireClient, start_ok
from tests.interop.tls_files import HOST, TlsFiles
from tests.unit.server.test_proxy_protocol import BODY, version_2
from tests.waiting import wait_until

LOOPBACK = b"PROXY TCP4 127.0.0.9 127.0.0.1 41000 5672\r\n"
ELSEWHERE = b"PROXY TCP4 203.0.113.7 10.0.0.1 41000 5672\r\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(str(tmp_path_factory.mktemp("tls") / "files"))


@pytest.fixture(scope="module")
def broker(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    config = directory / "amqpstore.toml"
    config.write_text('proxy_protocol = ["127.0.0.1:0"]\nmax_connections_per_peer = 10\n')
    arguments = ["--config", str(config), "--tls-listen", "127.0.0.1:0"]
    store, log = str(directory / "store"), str(directory / "log")
    with BrokerProcess(store, log, arguments, files.environment()) as process:
        process.start()
        yield process
        assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr, process.log_tail()


def behind(header: bytes, *, at_once: bool = True) -> type[WireClient]:
    """A client whose connection begins with a header, in one write or octet by octet."""

    class Proxied(WireClient):
        def __init__(self, url: str) -> None:
            super().__init__(url)
            if at_once:
                self.send(header)
            else:
                self.send_bytewise(header)

    return Proxied


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "header", [LOOPBACK, version_2(0x20, 0, b""), b"PROXY UNKNOWN\r\n"], ids=["v1", "LOCAL", "none"]
)
def test_who_comes_from_loopback_may_be_guest(
    broker: BrokerProcess, header: bytes, at_once: bool
) -> None:
    with behind(header, at_once=at_once).connected(broker.url, channels=1) as client:
        client.expect_alive()


def last_line(broker: BrokerProcess, event: str) -> str:
    """The last line of the log with this event; "" if there is none."""
    lines = [line for line in broker.stderr.splitlines() if event in line]
    return lines[-1] if lines else ""


@pytest.mark.parametrize("header", [ELSEWHERE, version_2(0x21, 0x11, BODY)], ids=["v1", "v2"])
def test_who_does_not_may_not(broker: BrokerProcess, header: bytes) -> None:
    with behind(header).greeted(broker.url) as client:
        client.send(start_ok())
        client.expect_closed()
    wait_until(lambda: "peer=203.0.113.7:41000" in last_line(broker, "login refused"))


def test_limits_of_a_peer_are_those_of_the_client(broker: BrokerProcess) -> None:
    others = [behind(LOOPBACK.replace(b".9", b".8")).connected(broker.url) for _ in range(10)]
    try:
        with behind(LOOPBACK.replace(b".9", b".8"))(broker.url) as refused:
            wait_until(lambda: is_closed(refused.socket), "one too many is refused")
        with behind(LOOPBACK).connected(broker.url, channels=1) as client:
            client.expect_alive()
    finally:
        for other in others:
            other.abort()


def test_the_header_comes_before_tls(broker: BrokerProcess, files: TlsFiles) -> None:
    context = files.context()
    with socket.create_connection(("127.0.0.1", broker.tls_port), 30) as plain:
        plain.sendall(ELSEWHERE)
        with context.wrap_socket(plain, server_hostname=HOST) as client:
            client.sendall(PROTOCOL_HEADER)
            assert client.recv(8)
    wait_until(lambda: "peer=203.0.113.7:41000" in last_line(broker, "TLS handshake done"))


@pytest.mark.parametrize("sent", [PROTOCOL_HEADER, b"PROXY TCP4 somebody\r\n" + PROTOCOL_HEADER])
def test_without_a_header_nobody_is_served(broker: BrokerProcess, sent: bytes) -> None:
    logged = broker.stderr.count("no header of the PROXY protocol")
    with socket.create_connection(("127.0.0.1", broker.port), 30) as client:
        client.sendall(sent)
        wait_until(lambda: is_closed(client), "it is closed")
    wait_until(lambda: broker.stderr.count("no header of the PROXY protocol") > logged)


def test_a_proxy_that_only_looks_is_not_logged(broker: BrokerProcess) -> None:
    before = broker.stderr
    with socket.create_connection(("127.0.0.1", broker.port), 30):
        pass
    with behind(LOOPBACK).connected(broker.url, channels=1) as client:
        client.expect_alive()
    assert "PROXY" not in broker.stderr[len(before) :]
