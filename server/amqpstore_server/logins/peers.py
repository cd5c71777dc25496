"""Peers: which addresses count as one, for limits of what one peer may have."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

_PREFIX_BITS = 64
"""How many leading bits of an IPv6 address name a peer: a single machine is usually given all the
addresses that share them.
"""


@lru_cache(maxsize=1024)
def peer_of(host: str) -> str:
    """Return the peer of an address: an IPv4 address, also if it is mapped into IPv6, or the /64 of
    an IPv6 address. What is neither is a peer of its own.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    # A listener on `::` sees IPv4 clients like this: they must not have a second allowance there.
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _PREFIX_BITS), strict=False))
