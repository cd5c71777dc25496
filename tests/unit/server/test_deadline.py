"""Deadlines of handshakes, see `Deadline`."""

from amqpstore_server.clients.deadline import Deadline


def test_it_is_over_after_its_seconds() -> None:
    deadline = Deadline(10.0, 100.0)
    assert not deadline.is_over(109.9)
    assert deadline.is_over(110.0)
    assert not deadline.is_over(110.0, more_s=1.0)


def test_to_extend_it_never_makes_it_earlier() -> None:
    deadline = Deadline(10.0, 100.0)
    deadline.extend(5.0, 101.0)
    assert not deadline.is_over(109.9)
    deadline.extend(5.0, 107.0)
    assert not deadline.is_over(111.9)
    assert deadline.is_over(112.0)


def test_it_is_put_off_once_until_it_is_set_anew() -> None:
    deadline = Deadline(10.0, 100.0)
    deadline.put_off(5.0)
    deadline.put_off(5.0)
    assert not deadline.is_over(114.9)
    assert deadline.is_over(115.0)
    deadline.restart(10.0, 200.0)
    deadline.put_off(5.0)
    assert not deadline.is_over(214.9)
    assert deadline.is_over(215.0)
