"""Keys of a configuration that act on nothing, because of the values of others.

Each of them is valid, and may be there for the day on which the other key changes; but somebody has
set it and supposes that it acts, so it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from amqpstore_server.config.config import KEYS, Config


class _Needed(NamedTuple):
    """Requirements of some keys, without which they do not act: keys with these names or prefixes,
    but for the exceptions.
    """

    prefixes: tuple[str, ...]
    what: str
    is_there: Callable[[Config], object]
    exceptions: tuple[str, ...] = ()


_NEEDED = (
    _Needed(
        ("tls_",),
        "tls_listen or management_tls_listen",
        lambda config: config.tls_listen or config.management_tls_listen,
    ),
    _Needed(
        ("tls_ca", "tls_login_from"),
        "tls_client, which must ask for certificates",
        lambda config: config.tls_client != "none",
    ),
    _Needed(
        ("tls_login_from",),
        "EXTERNAL in mechanisms",
        lambda config: "EXTERNAL" in config.mechanisms,
    ),
    _Needed(
        ("oauth_",),
        "oauth_resource_server_id",
        lambda config: config.oauth_resource_server_id,
    ),
    _Needed(
        ("oauth_jwks_ca",),
        "an https address in oauth_jwks",
        lambda config: config.oauth_jwks.startswith("https://"),
    ),
    _Needed(
        ("management_",),
        "management_listen or management_tls_listen",
        lambda config: config.management_listen or config.management_tls_listen,
        ("management_listen", "management_tls_listen", "management_max_connections"),
    ),
    _Needed(
        ("management_max_connections", "metrics_max_objects"),
        "management_listen, management_tls_listen or metrics_listen",
        lambda config: (
            config.management_listen or config.management_tls_listen or config.metrics_listen
        ),
    ),
    _Needed(("cluster_",), "cluster_name", lambda config: config.cluster_name),
    _Needed(
        ("cluster_etcd_ca", "cluster_etcd_certificate", "cluster_etcd_key"),
        "an https address in cluster_etcd",
        lambda config: any(url.startswith("https://") for url in config.cluster_etcd),
    ),
)


def without_effect(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the keys that differ from their default and act on nothing, each with what it needs."""
    told = set()
    for prefixes, what, is_there, exceptions in _NEEDED:
        if is_there(config):
            continue
        for name, key in KEYS.items():
            if not name.startswith(prefixes) or name in exceptions or name in told:
                continue
            if getattr(config, name) != key.default:
                told.add(name)
                yield name, what
