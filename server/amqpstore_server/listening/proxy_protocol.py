"""Reads headers of the PROXY protocol, with which a proxy says whose connection it passes on.

Version 1 is a line: `PROXY TCP4 203.0.113.7 10.0.0.1 41000 5672`, of 107 bytes at most with its CR
and LF. Version 2 is binary:

    0     12  signature
    12     1  version 2, and the command: LOCAL (0x20) or PROXY (0x21)
    13     1  TCP over IPv4 (0x11) or IPv6 (0x21); unspecified (0)
    14     2  bytes that follow
    16        addresses of the client and of what it connected to, then their ports
    28, 52    further fields: a type, 2 bytes of length, and a value
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED = struct.Struct(">12sBBH")
PORTS = struct.Struct(">HH")
PROXY = 0x21
IPV4, IPV6 = 0x11, 0x21
_LOCAL = 0x20
_UNSPECIFIED = 0
_ADDRESS_BYTES = {IPV4: 4, IPV6: 16}
MAX_BYTES = 4096
"""The most that may follow in version 2, which may describe the certificate of a client."""

_LINE = b"PROXY "
_LEAST_BYTES = 12
"""No header is shorter, in either version."""

_MAX_LINE_BYTES = 107
_IP_VERSIONS = {"TCP4": 4, "TCP6": 6}


class ProxyHeaderError(ValueError):
    """Raised when what was sent is not a header of the PROXY protocol."""


class Addresses(NamedTuple):
    """A client, and the address that it connected to. Hosts are IP addresses."""

    host: str
    port: int
    to_host: str
    to_port: int


def missing_bytes(start: bytes) -> int:
    """Return how many bytes more belong to a header for certain; 0 if it is whole.

    Raises: ProxyHeaderError.
    """
    known = _LINE if start.startswith(_LINE[:1]) else SIGNATURE
    if start[: len(known)] != known[: len(start)]:
        raise ProxyHeaderError(f"it begins with {start[:12]!r}")
    if len(start) < _LEAST_BYTES:
        return _LEAST_BYTES - len(start)
    if known is _LINE:
        if len(start) >= _MAX_LINE_BYTES and b"\n" not in start:
            raise ProxyHeaderError(f"a line of more than {_MAX_LINE_BYTES} bytes")
        # Byte by byte: what is behind the line is the client's, or that of its TLS.
        return 0 if b"\n" in start else 1
    if len(start) < FIXED.size:
        return FIXED.size - len(start)
    size = FIXED.unpack_from(start)[3]
    if size > MAX_BYTES:
        raise ProxyHeaderError(f"{size} bytes, more than {MAX_BYTES}")
    return int(FIXED.size + size - len(start))


def parsed(header: bytes) -> tuple[Addresses | None, bytes]:
    """Return the addresses that a whole header names, and its further fields. None stands for those
    of the connection itself: the proxy speaks for itself, or does not say for whom.

    Raises: ProxyHeaderError.
    """
    return (_of_line(header), b"") if header.startswith(_LINE) else _of_version_2(header)


def _of_line(header: bytes) -> Addresses | None:
    if not header.endswith(b"\r\n") or not header.isascii():
        raise ProxyHeaderError(f"a line that is {header!r}")
    _, protocol, *words = header[:-2].decode().split(" ")
    if protocol == "UNKNOWN":
        return None
    version = _IP_VERSIONS.get(protocol)
    if version is None or len(words) != 4:
        raise ProxyHeaderError(f"a line that is {header!r}")
    hosts = [_host(word, version) for word in words[:2]]
    ports = [_port(word) for word in words[2:]]
    return Addresses(hosts[0], ports[0], hosts[1], ports[1])


def _host(word: str, version: int) -> str:
    try:
        found = ipaddress.ip_address(word)
    except ValueError:
        found = None
    # A scope (`fe80::1%eth0`) names an interface of the proxy's machine.
    if found is None or found.version != version or "%" in word:
        raise ProxyHeaderError(f"{word!r} is not an address of IPv{version}")
    return _shortest(found)


def _port(word: str) -> int:
    if not word.isdigit() or len(word) > 5 or int(word) > 65_535:
        raise ProxyHeaderError(f"{word!r} is not a port")
    return int(word)


def _of_version_2(header: bytes) -> tuple[Addresses | None, bytes]:
    _, command, family, size = FIXED.unpack_from(header)
    if command == _LOCAL or (command == PROXY and family == _UNSPECIFIED):
        return None, b""
    length = _ADDRESS_BYTES.get(family)
    if command != PROXY or length is None or size < 2 * length + PORTS.size:
        raise ProxyHeaderError(f"command {command:#x}, family {family:#x}, {size} bytes")
    body = header[FIXED.size :]
    hosts = [_shortest(ipaddress.ip_address(body[at : at + length])) for at in (0, length)]
    port, to_port = PORTS.unpack_from(body, 2 * length)
    return Addresses(hosts[0], port, hosts[1], to_port), body[2 * length + PORTS.size :]


def _shortest(found: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """An IPv4 address is one, also where it is mapped into IPv6."""
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
