"""Checks of values of the configuration, beyond their types."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

_NO_URL = r"(?![A-Za-z][A-Za-z0-9+.-]*://)"
A_PATH_OR_EMPTY = rf"^{_NO_URL}[^\x00]*$"
A_PATH = rf"^{_NO_URL}[^\x00]+$"
"""The path of a file or a directory. An address on the web is none, though a file could have such a
name: nothing is fetched from there.
"""
SERVED_PATHS = frozenset(
    [
        "act",
        "api",
        "channels",
        "connections",
        "definitions",
        "exchanges",
        "explain",
        "favicon.ico",
        "health",
        "login",
        "logout",
        "metrics",
        "overview",
        "policies",
        "queues",
        "reports",
        "select",
        "static",
        "store",
        "stream",
        "users",
        "vhosts",
    ]
)
"""The beginnings of the paths of the management door: a prefix must not be taken for one of them.
"""

PATH_PREFIX = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*){1,16}")
"""One slash at its start: two would begin the address of another site."""

A_FILE = "the path of a file, or empty"


def host_and_port(address: str) -> tuple[str, int]:
    """Split HOST:PORT or [IPv6]:PORT. Raises: ValueError."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    # Without brackets, the last part of an IPv6 address could as well be a port.
    elif ":" in host:
        colon = ""
    # Digits of other scripts are digits for `isdigit`, too.
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ValueError(f"{address!r} is not an address")
    return host, int(port)


def check_addresses(addresses: Iterable[str]) -> None:
    """Check addresses to listen on. Raises: ValueError."""
    for address in addresses:
        host_and_port(address)


def check_known_address(address: str) -> None:
    """Check an address that others have to know: its port is not chosen by the system.

    Raises: ValueError.
    """
    if host_and_port(address)[1] == 0:
        raise ValueError(f"{address!r} has no port that others could know")


def check_origins(origins: Iterable[str]) -> None:
    """Check origins of web pages. Raises: ValueError."""
    for origin in origins:
        # Browsers send neither a path nor a slash at the end: such an origin would never match.
        parts = urlsplit(origin)
        if origin != "*" and f"{parts.scheme}://{parts.netloc}" != origin.lower():
            raise ValueError(f"{origin!r} is not an origin")


def check_public_origins(origins: Iterable[str]) -> None:
    """Check the origins of this door's own pages. Raises: ValueError."""
    check_origins(origins)
    if "*" in origins:
        raise ValueError("'*' is not an origin: any page could use a login of a browser")


def check_path_prefix(prefix: str) -> None:
    """Check the path below which a proxy serves pages. Raises: ValueError."""
    if prefix and not PATH_PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is not a path such as /rabbit")
    if prefix and prefix.split("/")[1] in SERVED_PATHS:
        raise ValueError(f"{prefix!r} begins with a path of the broker itself")


def check_provenance_bytes(size: int) -> None:
    """Check the space for notes of clients: they are removed a file at a time, so that a small
    number could not be held.

    Raises: ValueError.
    """
    if 0 < size < 1 << 20:
        raise ValueError("notes need 1 MiB at least")


def check_key_set(source: str) -> None:
    """Check where a JSON Web Key Set comes from. Raises: ValueError."""
    # An attacker on the way could put in keys of its own, and sign tokens with them.
    if "://" in source and not source.startswith(("https://", "file://")):
        raise ValueError("keys are fetched with https only")
    if "\0" in source:
        raise ValueError("a path has no NUL")
