"""The address at which a browser sees this door: behind a proxy under another host, scheme and path
than here.

A proxy that ends TLS passes requests on without it, many replace `Host` by the address that they
connect to, and some serve the door below a path, which they take away or leave. What the
configuration does not say is taken from the headers that proxies add (`X-Forwarded-Host`,
`-Proto`, `-Prefix`). Anybody may send these for themselves; a page of another site cannot make a
browser send them, and nothing that they say here lets anybody in: they choose links, whether a
cookie is sent over TLS only, and which pages count as those of this door.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from amqpstore_server.config.checks import PATH_PREFIX

if TYPE_CHECKING:
    from amqpstore_server.config.config import Config

_DEFAULT_PORT = re.compile(r":(80|443)$")


class PublicAddress:
    """The address of the door as the browser that sent a request sees it.

    `prefix` is the path below which it is, without a slash at its end; empty at the root. Args:
    scheme, by which the request came here.
    """

    def __init__(self, headers: Mapping[str, str], scheme: str, config: Config) -> None:
        self._headers = headers
        self._has_tls = scheme == "https"
        self._origins = config.management_public_origins
        self.prefix = config.management_path_prefix or _prefix_of(headers)

    def is_own(self, origin: str) -> bool:
        """Tell whether a page of this door has sent the request, by its header `Origin`.

        Without TLS the schemes are not compared: that the browser uses it, only a proxy knows that
        ends it.
        """
        if origin in self._origins:
            return True
        # A page that came without TLS could have been changed on its way.
        if self._has_tls and not origin.startswith("https://"):
            return False
        hosts = {_host(self._headers.get(name, "")) for name in ("host", "x-forwarded-host")}
        host = _host(urlsplit(origin).netloc)
        return bool(host) and host in hosts

    @property
    def is_secure(self) -> bool:
        """Whether the browser uses TLS, as far as that is known."""
        if self._has_tls:
            return True
        origin = self._headers.get("origin", "")
        if "://" in origin:
            return origin.startswith("https://")
        proxied = _first(self._headers.get("x-forwarded-proto", ""))
        if proxied:
            return proxied == "https"
        return f"https://{self._headers.get('host', '')}" in self._origins


def without_prefix(path: str, prefix: str) -> str:
    """Return a path below that of the door: a proxy may have left the prefix, or taken it away."""
    if prefix and (path == prefix or path.startswith(f"{prefix}/")):
        return path[len(prefix) :] or "/"
    return path


def _prefix_of(headers: Mapping[str, str]) -> str:
    prefix = headers.get("x-forwarded-prefix", "").rstrip("/")
    # The prefix becomes part of links and of the cookie's path: anything else in it could break
    # out of both.
    return prefix if PATH_PREFIX.fullmatch(prefix) else ""


def _first(value: str) -> str:
    """Return what the first of several proxies said: the one that the browser connected to."""
    return value.partition(",")[0].strip().lower()


def _host(value: str) -> str:
    return _DEFAULT_PORT.sub("", _first(value))
