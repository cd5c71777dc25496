"""Who a client is that a follower passes on: a header of the PROXY protocol, version 2, in front of
what the client sends.

    0     12  signature
    12     1  version 2, command PROXY (0x21)
    13     1  TCP over IPv4 (0x11) or IPv6 (0x21)
    14     2  bytes that follow
    16        addresses of the client and of what it connected to, then their ports
    28, 52    type ALPN (1), 2 bytes of length, and the door the client came through

It is believed of members only, which have proved to be some before they send it.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, get_args

Door: TypeAlias = Literal["amqp", "amqps"]
"""Whether the client speaks TLS, with the leader, after this header."""

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED = struct.Struct(">12sBBH")
_VERSION_AND_PROXY = 0x21
_IPV4, _IPV6 = 0x11, 0x21
_PORTS = struct.Struct(">HH")
_TLV = struct.Struct(">BH")
_ALPN = 1
_MAX_BYTES = 128


class ProxyHeaderError(ValueError):
    """What a member sends is not a header of the PROXY protocol."""


class ClientAddress(NamedTuple):
    """A client, the address that it connected to, and by which door. Hosts are IP addresses."""

    host: str
    port: int
    to_host: str
    to_port: int
    door: Door


def encode_header(client: ClientAddress) -> bytes:
    """Return the header. Raises: ValueError, for a host that is not an IP address."""
    hosts = [ipaddress.ip_address(host) for host in (client.host, client.to_host)]
    if hosts[0].version != hosts[1].version:
        hosts = [_as_ipv6(host) for host in hosts]
    family = _IPV4 if hosts[0].version == 4 else _IPV6
    door = client.door.encode()
    body = b"".join(
        (
            *(host.packed for host in hosts),
            _PORTS.pack(client.port, client.to_port),
            _TLV.pack(_ALPN, len(door)),
            door,
        )
    )
    return _FIXED.pack(_SIGNATURE, _VERSION_AND_PROXY, family, len(body)) + body


def _as_ipv6(
    host: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(f"::ffff:{host}") if host.version == 4 else host


def read_header(read: Callable[[int], bytes]) -> ClientAddress:
    """Read the header, and nothing behind it. Args: read, returns as many bytes as it is asked for.

    Raises: ProxyHeaderError, and what `read` does.
    """
    signature, command, family, size = _FIXED.unpack(read(_FIXED.size))
    if signature != _SIGNATURE or command != _VERSION_AND_PROXY:
        raise ProxyHeaderError(f"it begins with {signature[:12]!r}, command {command:#x}")
    length = {_IPV4: 4, _IPV6: 16}.get(family)
    if length is None or not 2 * length + _PORTS.size <= size <= _MAX_BYTES:
        raise ProxyHeaderError(f"family {family:#x} with {size} bytes")
    body = read(size)
    hosts = [_host(body[at : at + length]) for at in (0, length)]
    port, to_port = _PORTS.unpack_from(body, 2 * length)
    return ClientAddress(hosts[0], port, hosts[1], to_port, _door(body[2 * length + _PORTS.size :]))


def _host(packed: bytes) -> str:
    found = ipaddress.ip_address(packed)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _door(values: bytes) -> Door:
    while len(values) >= _TLV.size:
        kind, size = _TLV.unpack_from(values)
        value, values = values[_TLV.size :][:size], values[_TLV.size + size :]
        if kind == _ALPN and len(value) == size:
            for door in get_args(Door):
                if value == door.encode():
                    return door  # type: ignore[no-any-return]
    raise ProxyHeaderError("it does not name a door of this version")
