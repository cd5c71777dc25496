"""The keys of the configuration that make a broker a member of a cluster.

A broker whose `cluster_name` is empty is a single node: it reads none of the others, and loads none
of the modules that replicate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from amqpstore_server.config.checks import check_known_address
from amqpstore_server.config.keys import file_key, key

_NAME = r"^[A-Za-z0-9._-]*$"
_A_NAME = "letters, digits, `.`, `_` and `-`, at most 64"
_AN_ADDRESS = "HOST:PORT or [IPV6]:PORT, port from 1 to 65535"


def _endpoints(urls: list[str]) -> None:
    # Imported here: a single node has no endpoints to check.
    from amqpstore_server.etcd.settings import endpoint_url

    for url in urls:
        endpoint_url(url)


def _address_or_none(address: str) -> None:
    if address:
        check_known_address(address)


_NEEDS = (
    ("cluster_name", "cluster_etcd", "at least one endpoint"),
    ("cluster_etcd", "cluster_name", "the cluster's name"),
    ("cluster_certificate", "cluster_ca", "the path of a file"),
    ("cluster_ca", "cluster_certificate", "the path of a file"),
    ("cluster_key", "cluster_certificate", "the path of a file"),
    ("cluster_etcd_key", "cluster_etcd_certificate", "the path of a file"),
    ("cluster_etcd_password", "cluster_etcd_user", "the user's name"),
)
"""Keys that need another one, which that is, and what it has to be then."""


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a replicated broker: how it replicates its store, and where etcd is."""

    cluster_name: Annotated[
        str,
        key(
            "the cluster, as it is called in etcd; with it the broker is a member, and replicates "
            "its store",
            flag="--cluster-name",
            metavar="NAME",
            expected=f"{_A_NAME}, or empty",
            pattern=_NAME,
            max_length=64,
        ),
    ] = ""
    cluster_group: Annotated[
        str,
        key(
            "the group of members in that cluster that keep the same store",
            expected=f"{_A_NAME}, at least one",
            pattern=_NAME,
            min_length=1,
            max_length=64,
        ),
    ] = "main"
    cluster_etcd: Annotated[
        list[str],
        key(
            "the endpoints of etcd, tried in turn; port 2379 if none is given",
            flag="--cluster-etcd",
            metavar="URL",
            expected="a list of http://HOST:PORT or https://HOST:PORT",
            check=_endpoints,
        ),
    ] = msgspec.field(default_factory=list)
    cluster_etcd_ca: Annotated[
        str,
        file_key(
            "a PEM file: the CA of etcd's certificates, if it is not one that the system trusts",
        ),
    ] = ""
    cluster_etcd_certificate: Annotated[
        str,
        file_key(
            "a PEM file: the certificate that etcd is shown, and those between it and its CA",
        ),
    ] = ""
    cluster_etcd_key: Annotated[
        str,
        file_key(
            "a PEM file: its private key, without a password; empty means the same file",
        ),
    ] = ""
    cluster_etcd_user: Annotated[
        str, key("the user at etcd, where it asks for one", max_length=255)
    ] = ""
    cluster_etcd_password: Annotated[str, key("that user's password", secret=True)] = ""
    cluster_replicate: Annotated[
        str,
        key(
            "the address on which other members reach this one",
            flag="--cluster-replicate",
            metavar="HOST:PORT",
            expected=_AN_ADDRESS,
            check=check_known_address,
        ),
    ] = "0.0.0.0:5673"
    cluster_advertise: Annotated[
        str,
        key(
            "`cluster_replicate` as others have to write it; empty means with this host's name in "
            "place of a wildcard",
            expected=f"{_AN_ADDRESS}, or empty",
            check=_address_or_none,
        ),
    ] = ""
    cluster_advertise_amqp: Annotated[
        str,
        key(
            "the same for the first address of `listen`, as `amqpstore cluster status` shows it",
            expected=f"{_AN_ADDRESS}, or empty",
            check=_address_or_none,
        ),
    ] = ""
    cluster_certificate: Annotated[
        str,
        file_key(
            "a PEM file: the certificate of this member, and those between it and its CA; with it, "
            "members speak TLS and each has to show one; without it, they prove that they know the "
            "cluster's secret, and everything they send can be read on the way, but not changed",
        ),
    ] = ""
    cluster_key: Annotated[
        str,
        file_key(
            "a PEM file: its private key, without a password; empty means the same file",
        ),
    ] = ""
    cluster_ca: Annotated[
        str,
        file_key(
            "a PEM file: the CA that has signed the certificates of all members, and of no one "
            "else",
        ),
    ] = ""
    cluster_lease_s: Annotated[
        int,
        key(
            "a leader that is gone is replaced after this time; a smaller number makes a slow etcd "
            "or network cost leaders that are well",
            ge=2,
            le=60,
        ),
    ] = 3
    cluster_ack_timeout_s: Annotated[
        float,
        key(
            "a follower that acks nothing for this long, nor receives more of a large batch, while "
            "something waits for it, leaves the list of replicas, and so does one for which the "
            "others have waited most of this time; until then publishers wait for their confirms",
            ge=0.5,
            le=60,
        ),
    ] = 2.0
    cluster_stall_s: Annotated[
        float,
        key(
            "a leader whose disk or event loop hangs for this long lets another one lead",
            ge=1,
            le=60,
        ),
    ] = 3.0
    cluster_keep_log_bytes: Annotated[
        int,
        key(
            "as much of the log is kept for members that are away; one that lacks more gets a copy "
            "of the whole store",
            ge=0,
            live=True,
        ),
    ] = 1 << 30
    cluster_proxy: Annotated[
        bool,
        key(
            "whether a follower takes clients, and passes them on to the leader; not where members "
            "have certificates"
        ),
    ] = True


def cluster_conflicts(config: ClusterConfig) -> Iterator[tuple[str, str]]:
    """Yield the keys whose values do not fit those of others, each with the valid values."""
    for given, needed, what in _NEEDS:
        if getattr(config, given) and not getattr(config, needed):
            yield needed, f"{what}, as there is {given}"
