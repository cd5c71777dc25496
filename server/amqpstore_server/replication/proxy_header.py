"""The client that a follower passes on: a header of the PROXY protocol, version 2, in front of what
the client sends.

Among its further fields is one of type ALPN (1), with the scheme of the listener that the client
connected to. A header is believed only from members, which have proved that they are.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, get_args

from amqpstore_server.listening.proxy_protocol import (
    FIXED,
    IPV4,
    IPV6,
    PORTS,
    PROXY,
    SIGNATURE,
    ProxyHeaderError,
    missing_bytes,
    parsed,
)

Scheme: TypeAlias = Literal["amqp", "amqps", "http", "https"]
"""The protocol that the client speaks after this header: with the leader, TLS included."""

_TLV = struct.Struct(">BH")
_ALPN = 1


class ClientAddress(NamedTuple):
    """A client, the address that it connected to, and the scheme of the listener there. Hosts are
    IP addresses.
    """

    host: str
    port: int
    to_host: str
    to_port: int
    scheme: Scheme


def encode_header(client: ClientAddress) -> bytes:
    """Return the header. Raises: ValueError, for a host that is not an IP address."""
    hosts = [ipaddress.ip_address(host) for host in (client.host, client.to_host)]
    # A PROXY header has one address family. A listener on `::` sees IPv4 clients as mapped
    # addresses on one side only.
    if hosts[0].version != hosts[1].version:
        hosts = [_as_ipv6(host) for host in hosts]
    family = IPV4 if hosts[0].version == 4 else IPV6
    scheme = client.scheme.encode()
    body = b"".join(
        (
            *(host.packed for host in hosts),
            PORTS.pack(client.port, client.to_port),
            _TLV.pack(_ALPN, len(scheme)),
            scheme,
        )
    )
    return FIXED.pack(SIGNATURE, PROXY, family, len(body)) + body


def _as_ipv6(
    host: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(f"::ffff:{host}") if host.version == 4 else host


def read_header(read: Callable[[int], bytes]) -> ClientAddress:
    """Read the header, and nothing behind it. Args: read, returns as many bytes as it is asked for.

    Raises: ProxyHeaderError, and what `read` does.
    """
    header = b""
    while count := missing_bytes(header):
        header += read(count)
    found, fields = parsed(header)
    if found is None:
        raise ProxyHeaderError("it names no client")
    return ClientAddress(*found, _scheme(fields))


def _scheme(values: bytes) -> Scheme:
    while len(values) >= _TLV.size:
        kind, size = _TLV.unpack_from(values)
        value, values = values[_TLV.size :][:size], values[_TLV.size + size :]
        # Unknown fields are skipped, as the specification of PROXY asks: a newer follower may send
        # more.
        if kind == _ALPN and len(value) == size:
            for scheme in get_args(Scheme):
                if value == scheme.encode():
                    return scheme  # type: ignore[no-any-return]
    raise ProxyHeaderError("it does not name a scheme of this version")
