"""Listening: which clients reach wildcard addresses, and how they are accepted."""

import contextlib
import socket

import pytest
import trio
import trio.testing

from amqpstore_server.listening.admission import AdmissionLine
from amqpstore_server.listening.listening import Acceptor, listen
from tests.etcd_process import free_port
from tests.waiting import wait_readable


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


def reaches(host: str, port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, port), 10):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
@pytest.mark.trio
async def test_the_wildcard_of_ipv6_is_for_both_families() -> None:
    (listener,) = await listen([("::", 0)])
    with listener:
        port = listener.getsockname()[1]
        assert not listener.getblocking()
        assert reaches("127.0.0.1", port)
        assert reaches("::1", port)


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
@pytest.mark.trio
async def test_each_family_may_have_a_wildcard_of_its_own() -> None:
    port = free_port()
    for addresses in ([("0.0.0.0", port), ("::", port)], [("::", port), ("0.0.0.0", port)]):
        first, second = await listen(addresses)
        with first, second:
            assert {first.family, second.family} == {socket.AF_INET, socket.AF_INET6}
            assert reaches("127.0.0.1", port)
            assert reaches("::1", port)


@pytest.mark.trio
async def test_the_wildcard_of_ipv4_is_for_ipv4_only() -> None:
    (listener,) = await listen([("0.0.0.0", 0)])
    with listener:
        port = listener.getsockname()[1]
        assert reaches("127.0.0.1", port)
        assert not has_ipv6() or not reaches("::1", port)


@pytest.mark.trio
async def test_nobody_is_accepted_while_others_come_first() -> None:
    """The task accepts none either, as it does not look by itself for new connections."""
    admitted: list[socket.socket] = []

    def admit(client: socket.socket, _host: str) -> bool:
        admitted.append(client)
        return True

    others = [True]
    (listener,) = await listen([("127.0.0.1", 0)])
    acceptor = Acceptor(listener, AdmissionLine(), admit, lambda: bool(others))
    with socket.create_connection(listener.getsockname()):
        wait_readable(listener)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acceptor.run)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            assert not acceptor.has_arrived(trio.current_time())
            assert not admitted
            others.clear()
            while not admitted:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            with socket.create_connection(listener.getsockname()):
                wait_readable(listener)
                await trio.testing.wait_all_tasks_blocked()
                assert len(admitted) == 1
                assert acceptor.has_arrived(trio.current_time())
                assert len(admitted) == 2
            nursery.cancel_scope.cancel()
    for client in admitted:
        client.close()


@pytest.mark.trio
async def test_who_has_arrived_is_let_in_without_a_turn_of_the_task() -> None:
    admitted: list[socket.socket] = []

    def admit(client: socket.socket, _host: str) -> bool:
        admitted.append(client)
        return True

    line = AdmissionLine()
    (listener,) = await listen([("127.0.0.1", 0)])
    acceptor = Acceptor(listener, line, admit)
    assert not acceptor.has_arrived(0.0)  # the acceptor does not run yet
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        await trio.testing.wait_all_tasks_blocked()
        with socket.create_connection(listener.getsockname()):
            wait_readable(listener)
            assert acceptor.has_arrived(trio.current_time())
            assert len(admitted) == 1
        # At that time no other client may be let in: the task does it later.
        line.rate.per_s = 1000
        line.rate.note(trio.current_time())
        with socket.create_connection(listener.getsockname()):
            wait_readable(listener)
            assert not acceptor.has_arrived(trio.current_time() - 100)
            assert len(admitted) == 1
            while len(admitted) < 2:
                await trio.lowlevel.checkpoint()
            assert not line
        nursery.cancel_scope.cancel()
    for client in admitted:
        client.close()
