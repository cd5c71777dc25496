"""The header with which a follower says who a client is."""

import ipaddress
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqpstore_server.listening.proxy_protocol import ProxyHeaderError
from amqpstore_server.replication.proxy_header import ClientAddress, encode_header, read_header

PORTS = st.integers(0, 65_535)
HOSTS = st.ip_addresses().map(str)
CLIENT = ClientAddress("192.0.2.7", 41_000, "10.0.0.1", 5672, "amqp")
EXAMPLE = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x13\xc0\x00\x02\x07\x0a\x00\x00\x01\xa0\x28\x16\x28"
    b"\x01\x00\x04amqp"
)


def reader(content: bytes) -> Callable[[int], bytes]:
    """Reads as a socket does that ends there."""
    left = bytearray(content)

    def read(size: int) -> bytes:
        if size > len(left):
            raise EOFError
        found = bytes(left[:size])
        del left[:size]
        return found

    return read


def test_the_bytes_are_those_of_version_2() -> None:
    assert encode_header(CLIENT) == EXAMPLE
    assert read_header(reader(EXAMPLE + b"AMQP")) == CLIENT


@given(st.builds(ClientAddress, HOSTS, PORTS, HOSTS, PORTS, st.sampled_from(["amqp", "amqps"])))
@example(ClientAddress("::ffff:1.2.3.4", 1, "::1", 2, "amqps"))
@example(ClientAddress("1.2.3.4", 1, "::1", 2, "amqps"))
def test_who_it_is_comes_back(client: ClientAddress) -> None:
    """An IPv4 address is one, however it was written."""
    found = read_header(reader(encode_header(client) + b"what the client sends"))

    def bare(host: str) -> str:
        address = ipaddress.ip_address(host)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)

    assert found == client._replace(host=bare(client.host), to_host=bare(client.to_host))


@given(st.binary(max_size=200))
@example(EXAMPLE[:-1] + b"x")
@example(EXAMPLE.replace(b"\x21\x11", b"\x20\x11"))
@example(EXAMPLE.replace(b"\x21\x11", b"\x21\x31"))
@example(EXAMPLE.replace(b"\x00\x13", b"\xff\xff"))
@example(EXAMPLE.replace(b"\x00\x13", b"\x00\x0b"))
@example(EXAMPLE.replace(b"\x01\x00\x04", b"\x01\x00\x05"))
@example(EXAMPLE.replace(b"\x01\x00\x04", b"\x02\x00\x04"))
def test_anything_else_is_refused(content: bytes) -> None:
    for sent in (content, EXAMPLE[:16] + content):
        with pytest.raises((ProxyHeaderError, EOFError)):
            read_header(reader(sent))


def test_each_cut_is_an_end() -> None:
    for size in range(len(EXAMPLE)):
        with pytest.raises(EOFError):
            read_header(reader(EXAMPLE[:size]))


def test_a_name_is_no_host() -> None:
    with pytest.raises(ValueError, match="localhost"):
        encode_header(CLIENT._replace(host="localhost"))
