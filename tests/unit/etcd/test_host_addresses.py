"""Tests of names of etcd's endpoints, when the resolver does not answer."""

import socket
import threading
from typing import Any

import pytest

from amqpstore_server.etcd import host_addresses
from amqpstore_server.etcd.endpoint import Endpoint
from amqpstore_server.etcd.errors import EndpointError
from amqpstore_server.etcd.host_addresses import HostAddresses
from amqpstore_server.etcd.settings import EtcdSettings
from tests.unit.etcd.canned_server import CannedServer, http

GIVEN_UP_S = 0.1
PATIENT_S = 60.0


class Resolver:
    """Finds 127.0.0.1 for every name, or hangs until it is let go."""

    def __init__(self) -> None:
        self.hangs = False
        self.let_go = threading.Event()
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        if self.hangs:
            self.let_go.wait(PATIENT_S)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    there = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **options: Any) -> Any:
        found = made.getaddrinfo if host.endswith(".example") else there
        return found(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return made


def ends(resolver: Resolver) -> None:
    """Let look-ups end, and wait for their threads."""
    resolver.let_go.set()
    for thread in threading.enumerate():
        if thread.name == host_addresses.THREAD:
            thread.join()


def test_a_look_up_that_hangs_costs_no_more_than_the_time_limit(resolver: Resolver) -> None:
    """One thread looks up a name, however often it is asked for."""
    resolver.hangs = True
    url = "http://etcd.example:1"
    endpoint = Endpoint(url, EtcdSettings((url,)), GIVEN_UP_S)
    for _ in range(3):
        with pytest.raises(EndpointError, match=r"the name etcd\.example is not found") as found:
            endpoint.post("/v3/kv/range", b"")
        assert not found.value.may_happen
    assert resolver.asked == ["etcd.example"]
    endpoint.close()
    ends(resolver)


def test_addresses_that_were_found_before_are_used_while_there_is_no_answer(
    resolver: Resolver,
) -> None:
    with CannedServer(http(b"{}"), then_closes=True) as server:
        url = f"http://etcd.example:{server.url.rpartition(':')[2]}"
        endpoint = Endpoint(url, EtcdSettings((url,)), PATIENT_S)
        assert endpoint.post("/", b"") == b"{}"
        resolver.hangs = True
        endpoint._addresses._timeout_s = GIVEN_UP_S
        endpoint.close()
        assert endpoint.post("/", b"") == b"{}"
        assert b"Host: etcd.example" in server.requests[-1]
        endpoint.close()
    ends(resolver)
    assert len(resolver.asked) == 2


def test_who_asks_again_when_an_answer_has_come_gets_a_new_one(resolver: Resolver) -> None:
    resolver.hangs = True
    addresses = HostAddresses("etcd.example", PATIENT_S)
    first = addresses._asked()
    second: list[object] = []
    first.add_done_callback(lambda _: second.append(addresses._asked()))
    ends(resolver)
    assert second != [first]


def test_an_address_is_not_looked_up(resolver: Resolver) -> None:
    assert HostAddresses("127.0.0.1", GIVEN_UP_S).get() == ["127.0.0.1"]
    assert HostAddresses("::1", GIVEN_UP_S).get() == ["::1"]
    assert resolver.asked == []
