"""The doors: who is let in, and who has to go for it."""

import socket
from collections.abc import Iterator

import pytest

from amqpstore_server.listening import doors as module
from amqpstore_server.listening.doors import Doors, Visitor
from tests.guests import NamedGuest


class Street:
    """Doors through which guests come, and the names of those that were turned away."""

    def __init__(self, descriptors: int) -> None:
        self.doors = Doors(descriptors)
        self.turned_away: list[str] = []

    def enter(self, name: str, host: str = "a") -> Visitor | None:
        return self.doors.enter(host, NamedGuest(name, self.turned_away), now=0.0)

    def log_in(self, name: str) -> None:
        visitor = self.enter(name)
        assert visitor is not None
        visitor.logged_in()


def test_half_of_few_descriptors_are_for_clients_and_half_of_those_for_strangers() -> None:
    doors = Doors(256)
    assert (doors.max_visitors, doors.max_strangers) == (128, 64)


def test_of_many_descriptors_the_store_keeps_a_thousand() -> None:
    assert Doors(1_000_000).max_visitors == 1_000_000 - 1024


def test_the_oldest_silent_stranger_makes_room_for_the_newest() -> None:
    street = Street(16)
    for name in "abcde":
        assert street.enter(name) is not None
    assert street.turned_away == ["a"]


def test_the_peer_that_has_most_of_them_gives_way() -> None:
    street = Street(16)
    street.enter("first", host="b")
    for name in "abcde":
        street.enter(name)
    assert street.turned_away == ["a", "b"]


def test_whose_login_is_checked_does_not_give_way_and_the_newest_is_refused() -> None:
    street = Street(16)
    for name in "abcd":
        visitor = street.enter(name)
        assert visitor is not None
        visitor.identified()
    assert street.enter("e") is None
    assert street.turned_away == []


def test_who_has_logged_in_never_gives_way() -> None:
    street = Street(16)
    for name in "abcdefgh":
        street.log_in(name)
    assert street.enter("i") is None
    assert street.turned_away == []


def test_a_stranger_makes_room_where_clients_have_taken_all_places() -> None:
    street = Street(16)
    street.enter("stranger")
    for name in "abcdefgh":
        street.log_in(name)
    assert street.turned_away == ["stranger"]


def test_who_leaves_makes_room() -> None:
    street = Street(16)
    visitors = [street.enter(name) for name in "abcd"]
    for visitor in visitors:
        assert visitor is not None
        visitor.identified()
        visitor.disconnected()
        visitor.disconnected()
    assert street.enter("e") is not None
    assert (len(street.doors.visitors), len(street.doors.strangers)) == (1, 1)


def test_one_peer_has_no_more_than_its_share() -> None:
    street = Street(64)
    street.doors.limit(0, 2)
    street.log_in("one")
    street.log_in("two")
    assert street.enter("three") is None
    assert street.enter("other", host="b") is not None


def test_the_oldest_silent_one_of_a_full_peer_makes_room() -> None:
    street = Street(64)
    street.doors.limit(0, 2)
    street.enter("other", host="b")
    for name in "abc":
        assert street.enter(name) is not None
    assert street.turned_away == ["a"]
    assert len(street.doors.visitors) == 3


def test_who_leaves_makes_room_once() -> None:
    street = Street(64)
    street.doors.limit(0, 1)
    visitor = street.enter("one")
    assert visitor is not None
    visitor.logged_in()
    visitor.disconnected()
    visitor.disconnected()
    street.log_in("two")
    assert street.enter("three") is None


def test_connections_in_all_are_limited() -> None:
    street = Street(1000)
    street.doors.limit(3, 0)
    for name in "abc":
        street.log_in(name)
    assert street.enter("d") is None
    street.doors.limit(0, 0)
    assert street.enter("e") is not None


def test_whose_login_was_wrong_gives_way_again() -> None:
    """A refused client may stay for a moment: many that try passwords keep no other client out."""
    street = Street(16)
    for name in "abcd":
        visitor = street.enter(name)
        assert visitor is not None
        visitor.identified()
        visitor.refused()
    assert street.enter("e") is not None
    assert street.turned_away == ["a"]
    assert visitor is not None
    visitor.disconnected()
    visitor.refused()
    assert len(street.doors.visitors) == 3


class Stampede:
    """Clients that come at once, where two of them are expected to log in at a time.

    All tests begin at 0 by the clock, where strangers have a second.
    """

    def __init__(self, descriptors: int = 1000) -> None:
        self.doors = Doors(descriptors)
        self.inside: list[Visitor] = []
        self.clients: list[NamedGuest] = []
        self.turned_away: list[str] = []
        self._sockets: list[socket.socket] = []

    def come(self, count: int) -> None:
        for _ in range(count):
            ours, theirs = socket.socketpair()
            self._sockets += [ours, theirs]
            self.doors.admission.join(ours, "a", self._admit)

    def let_in(self, now: float) -> int:
        """Return how many are let in at a time."""
        self._now = now
        before = len(self.inside)
        wait_s = self.doors.admission.let_in(now)
        assert bool(wait_s) is bool(self.doors.admission)
        return len(self.inside) - before

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def _admit(self, _client: socket.socket, host: str) -> bool:
        client = NamedGuest(f"{len(self.clients)}", self.turned_away)
        visitor = self.doors.enter(host, client, self._now)
        assert visitor is not None
        self.clients.append(client)
        self.inside.append(visitor)
        return True


@pytest.fixture
def stampede(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stampede]:
    monkeypatch.setattr(module, "_MAX_EXPECTED", 2)
    found = Stampede()
    yield found
    found.close()


def test_in_a_stampede_each_login_lets_another_one_in(stampede: Stampede) -> None:
    stampede.come(4)
    assert stampede.let_in(0.0) == 2
    assert stampede.let_in(0.9) == 0
    stampede.inside[0].logged_in()
    assert stampede.let_in(0.9) == 1
    stampede.inside[1].identified()  # its login is being checked
    assert stampede.let_in(0.9) == 1
    assert len(stampede.doors.strangers) == 3


def test_who_stays_silent_is_expected_no_longer_and_shortens_the_time_of_others(
    stampede: Stampede,
) -> None:
    stampede.come(9)
    assert stampede.let_in(0.0) == 2
    assert (
        stampede.let_in(module._LONGEST_MOMENT_S) == 2
    )  # after the first two, a quarter of a second is left
    assert stampede.let_in(1.2) == 0
    assert stampede.let_in(1.25) == 2
    stampede.inside[0].logged_in()
    stampede.inside[1].logged_in()
    assert stampede.let_in(1.65) == 2
    assert stampede.turned_away == []


def test_what_was_not_read_yet_is_waited_for(stampede: Stampede) -> None:
    stampede.come(4)
    assert stampede.let_in(0.0) == 2
    stampede.clients[0].is_unread = True
    assert stampede.let_in(60.0) == 0
    stampede.clients[0].is_unread = False
    assert stampede.let_in(60.0) == 2


def test_while_the_logins_of_all_strangers_are_checked_nobody_is_refused() -> None:
    stampede = Stampede(16)
    stampede.come(6)
    assert stampede.let_in(0.0) == 4
    for visitor in stampede.inside:
        visitor.identified()
    assert stampede.let_in(60.0) == 0
    stampede.inside[0].logged_in()
    assert stampede.let_in(60.0) == 1
    stampede.close()


def test_those_who_wait_leave_places_to_those_who_were_let_in() -> None:
    street = Street(16)
    line = street.doors.admission
    pairs = [socket.socketpair() for _ in range(7)]
    for ours, _ in pairs:
        line.join(ours, "a", lambda _client, _host: True)
    assert len(line) == 6
    line.close()
    for name in "abcdefgh":
        street.log_in(name)
    line.join(socket.socket(), "a", lambda _client, _host: True)
    assert not line
    for pair in pairs:
        for one in pair:
            one.close()


def test_a_stranger_that_just_came_does_not_have_to_leave() -> None:
    stampede = Stampede(16)
    stampede.come(6)
    assert stampede.let_in(0.0) == 4
    assert stampede.let_in(0.9) == 0
    assert stampede.let_in(1.0) == 2
    assert stampede.turned_away == ["0", "1"]
    stampede.close()
