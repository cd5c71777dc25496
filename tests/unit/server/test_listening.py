"""Wildcard addresses: which clients reach them."""

import contextlib
import socket

import pytest

from amqpstore_server.listening import listen
from tests.etcd_process import free_port


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
