"""Tests of which addresses are one peer: a client gains nothing by having more addresses."""

import pytest
import trio
import trio.testing

from amqpstore_server.listening.doors import Doors
from amqpstore_server.logins.login_checks import LoginChecks
from amqpstore_server.logins.peers import peer_of
from tests.guests import NamedGuest

OTHER = "2001:db8:0:2::1"


def address(number: int) -> str:
    """One of the addresses of an attacker's /64."""
    return f"2001:db8:0:1:{number >> 16:x}:{number & 0xFFFF:x}:0:1"


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:a:b:c:d", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("not an address", "not an address"),
    ],
)
def test_a_peer_is_an_ipv4_address_or_a_network_of_ipv6(host: str, peer: str) -> None:
    assert peer_of(host) == peer


def test_many_addresses_of_one_network_are_one_peer_at_the_doors() -> None:
    doors = Doors(1000)
    doors.limit(0, 3)
    for number in range(3):
        visitor = doors.enter(address(number), NamedGuest(), 0.0)
        assert visitor is not None
        visitor.logged_in()
        last = visitor
    assert doors.enter(address(3), NamedGuest(), 0.0) is None
    assert doors.enter(OTHER, NamedGuest(), 0.0) is not None
    last.disconnected()
    assert doors.enter(address(3), NamedGuest(), 0.0) is not None


def test_silent_connections_of_one_network_make_room_before_those_of_others() -> None:
    doors = Doors(16)
    turned_away: list[str] = []
    doors.enter(OTHER, NamedGuest("other", turned_away), 0.0)
    for number in range(20):
        host = address(number)
        assert doors.enter(host, NamedGuest(host, turned_away), 0.0)
    assert turned_away == [address(number) for number in range(17)]


def test_mapped_addresses_are_the_peers_that_they_are_without() -> None:
    doors = Doors(1000)
    doors.limit(0, 1)
    first = doors.enter("::ffff:192.0.2.1", NamedGuest(), 0.0)
    assert first is not None
    first.logged_in()
    assert doors.enter("192.0.2.1", NamedGuest(), 0.0) is None
    assert doors.enter("::ffff:192.0.2.2", NamedGuest(), 0.0) is not None


def test_wrong_logins_from_many_addresses_of_one_network_wait_for_each_other() -> None:
    """Peers take turns, so another one has every second turn."""
    began: list[str] = []

    async def main() -> None:
        checks = LoginChecks(1)
        ends = trio.Semaphore(0)

        async def check(host: str) -> None:
            async with checks.turn(host, "user"):
                began.append(peer_of(host))
                await ends.acquire()

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(check, address(number))
                await trio.testing.wait_all_tasks_blocked()
            for _ in range(6):
                nursery.start_soon(check, OTHER)
                await trio.testing.wait_all_tasks_blocked()
            for _ in range(46):
                ends.release()
                await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert began[:14].count(peer_of(OTHER)) >= 5
